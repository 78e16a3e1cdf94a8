package images

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v3"

	imagename "github.com/sandbox-runtime/sandbox-runtime/images/name"
	imagesource "github.com/sandbox-runtime/sandbox-runtime/images/source"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// The values of --pull.
const (
	pullAlways  = "always"
	pullMissing = "missing"
	pullNever   = "never"
)

// PullFlag returns the flag --pull of the commands that make a sandbox.
func PullFlag() cli.Flag {
	return &cli.StringFlag{Name: "pull", Value: pullMissing, Usage: "`WHEN` the image is read from its registry: always, missing or never"}
}

// Take makes sure that the user has the image of a configuration, and returns the image's settings. Without
// an image they are empty. note gets the notes of a pull.
func Take(ctx context.Context, cmd *cli.Command, m *sandbox.Manager, c spec.Config, note func(string)) (spec.ImageConfig, error) {
	when := cmd.String("pull")
	switch {
	case !slices.Contains([]string{pullAlways, pullMissing, pullNever}, when):
		return spec.ImageConfig{}, fmt.Errorf("--pull %s: use %s, %s or %s", when, pullAlways, pullMissing, pullNever)
	case c.Image == "" && cmd.IsSet("pull"):
		return spec.ImageConfig{}, errors.New("--pull: there is no image; name one with --image")
	case c.Image == "":
		return spec.ImageConfig{}, nil
	}
	image, err := m.Image(ctx, c.Image)
	if when == pullAlways || when == pullMissing && errors.Is(err, sandbox.ErrNotFound) {
		if err := pullForUse(ctx, cmd, m, c.Image, note); err != nil {
			return spec.ImageConfig{}, err
		}
		image, err = m.Image(ctx, c.Image)
	}
	if err != nil {
		return spec.ImageConfig{}, fmt.Errorf("--image %s: %w", c.Image, err)
	}
	return spec.ReadImageConfig(image.Config)
}

// pullForUse pulls an image by its name. Of an archive or a directory the image would get no name, so that the sandbox
// could not find it.
func pullForUse(ctx context.Context, cmd *cli.Command, m *sandbox.Manager, name string, note func(string)) error {
	r, err := imagesource.Parse(name)
	switch {
	case err == nil && r.Kind != imagesource.Registry:
		return fmt.Errorf("--image %s cannot be pulled: an image on this host needs a name; first run: image import %[1]s --name NAME", name)
	case imagename.IsDigest(name):
		return fmt.Errorf("--image %s cannot be pulled: it is an id; pull the image by its name", name)
	}
	var shown *pullProgress
	if !cmd.Bool("json") { // the Result is the only output then
		shown = newPullProgress(cmd.Root().ErrWriter)
	}
	if _, err = shown.pull(ctx, m, name, sandbox.PullOptions{Note: note}); err != nil {
		return fmt.Errorf("--image %s cannot be pulled: %w", name, err)
	}
	return nil
}
