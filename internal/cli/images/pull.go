package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	imagename "github.com/sandbox-runtime/sandbox-runtime/images/name"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func pullCommand() *cli.Command {
	return &cli.Command{
		Name:      "pull",
		Usage:     "read an image from a registry",
		ArgsUsage: "NAME[:TAG|@DIGEST]",
		Description: `The name is read as Docker reads it: busybox is docker.io/library/busybox:latest. Credentials
come from the files and helpers of Docker and podman (docker login, podman login). Layers that
this user has are not read again. Pulls of one layer at the same time share one download, and an
interrupted download goes on.

    sandbox-runtime image pull debian:12
    sandbox-runtime image pull registry.example.com:5000/team/app@sha256:DIGEST
    sandbox-runtime image pull --platform linux/arm64 busybox

The sources of "image import" can be named here, too: oci:DIR, oci-archive:FILE,
docker-archive:FILE, rootfs:FILE and dir:DIR, each with --name.`,
		Flags:  pullFlags(),
		Action: commandline.WithHint(1, 1, "say one image, as in: image pull debian:12", pull),
	}
}

// pullFlags are the flags of pull.
func pullFlags() []cli.Flag {
	return append(importFlags("its name in the registry, or its names in an archive of docker save"),
		&cli.StringSliceFlag{Name: "plain-http", Usage: "`HOST[:PORT]` of a registry without TLS (repeatable); loopback addresses need none"},
		&cli.StringSliceFlag{Name: "mirror", Usage: "`REGISTRY=HOST[:PORT][/PREFIX]` of a mirror to ask first, such as docker.io=mirror.example.com (repeatable)"},
		&cli.StringSliceFlag{Name: "token-host", Usage: "`HOST[:PORT]` of a token server on another site that may get the credentials of the registry (repeatable)"},
	)
}

// importFlags are the flags of both pull and import. unnamed is the name of an image without --name.
func importFlags(unnamed string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "name", Usage: "`REF` that names the image here (default: " + unnamed + ")"},
		&cli.StringFlag{Name: "platform", Usage: "`OS/ARCH[/VARIANT]` to choose from an image with several (default: this host's)"},
		&cli.StringFlag{Name: "max-bytes", Usage: "`SIZE` that bounds each layer, uncompressed, and each archive, at most 32g (default: nine tenths of the free space)"},
		commandline.QuietFlag("print no progress"),
		commandline.JSONFlag("print the image as JSON"),
	}
}

func pull(ctx context.Context, cmd *cli.Command) error {
	text := cmd.Args().First()
	if text == "-" {
		return errors.New("image pull reads no standard input; use: image import -")
	}
	image, shown, err := pullImage(ctx, cmd, text, nil)
	if err != nil {
		return err
	}
	name := pulledName(image, cmp.Or(cmd.String("name"), text))
	if err := shown.status(image, name); err != nil {
		return err
	}
	return printPulled(cmd, image, name)
}

// pulledName is the name that a pull has given, or else the id.
func pulledName(image sandbox.Image, text string) string {
	if n, err := imagename.Parse(text); err == nil && slices.ContainsFunc(image.References, func(r sandbox.ImageReference) bool { return r.Name == n.Full() }) {
		return n.Full()
	}
	return image.ID
}

func printPulled(cmd *cli.Command, image sandbox.Image, line string) error {
	if cmd.Bool("json") {
		return printIndented(cmd.Root().Writer, image)
	}
	_, err := fmt.Fprintln(cmd.Root().Writer, line)
	return err
}

// pullImage reads an image, and tells the progress. shown is nil with --quiet.
func pullImage(ctx context.Context, cmd *cli.Command, text string, stdin *os.File) (image sandbox.Image, shown *pullProgress, err error) {
	mirrors, err := mirrorsOf(cmd.StringSlice("mirror"))
	if err != nil {
		return image, nil, err
	}
	if cmd.IsSet("name") && cmd.String("name") == "" { // as of an unset variable of a script
		return image, nil, errors.New("--name: is empty; name the image, or leave the flag out")
	}
	maxBytes, err := commandline.SizeOf(cmd, "max-bytes", "2g")
	if err != nil {
		return image, nil, err
	}
	if stdin == nil {
		stdin = os.Stdin
	}
	o := sandbox.PullOptions{
		Name: cmd.String("name"), Platform: cmd.String("platform"), Mirrors: mirrors, Stdin: stdin,
		PlainHTTP: cmd.StringSlice("plain-http"), TokenHosts: cmd.StringSlice("token-host"), Note: TellNote(cmd),
		MaxBytes: maxBytes,
	}
	if !cmd.Bool("quiet") {
		shown = newPullProgress(cmd.Root().ErrWriter)
	}
	err = connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		image, err = shown.pull(ctx, m.Manager, text, o)
		return err
	})
	return image, shown, err
}

// TellNote prints the notes of a pull.
func TellNote(cmd *cli.Command) func(string) {
	return func(line string) { fmt.Fprintln(cmd.Root().ErrWriter, line) }
}

// mirrorsOf reads the values of --mirror.
func mirrorsOf(values []string) (map[string][]string, error) {
	mirrors := map[string][]string{}
	for _, v := range values {
		registry, mirror, found := strings.Cut(v, "=")
		if !found || registry == "" || mirror == "" {
			return nil, fmt.Errorf("--mirror %s: want REGISTRY=HOST, as in docker.io=mirror.example.com", v)
		}
		mirrors[registry] = append(mirrors[registry], mirror)
	}
	return mirrors, nil
}
