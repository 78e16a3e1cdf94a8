package images

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/urfave/cli/v3"

	imagename "github.com/sandbox-runtime/sandbox-runtime/images/name"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
)

// Command makes the command image, with the commands below it.
func Command() *cli.Command {
	c := &cli.Command{
		Name:  "image",
		Usage: "pull, import, list and remove images",
		Description: `An image is a root file system with the defaults of its commands. Layers are kept once for all
users of the host. A user sees and uses only the images that this user has pulled or imported.

    sandbox-runtime image pull debian:12
    sandbox-runtime image import ./rootfs --name mine
    sandbox-runtime image ls`,
		Action: func(_ context.Context, cmd *cli.Command) error {
			if name := cmd.Args().First(); name != "" {
				return fmt.Errorf("image has no command %q%s", name, commandLike(cmd, name))
			}
			return errors.New("say a command: pull, import, ls, inspect, rm, prune or verify, as in: image ls")
		},
		Commands: []*cli.Command{
			pullCommand(), importCommand(), listCommand(), inspectCommand(),
			removeCommand(), pruneCommand(), verifyCommand(),
		},
	}
	for _, sub := range c.Commands {
		sub.Category = commandline.CategorySandbox
		sub.HideHelpCommand = true
		sub.DisableSliceFlagSeparator = true
		sub.OnUsageError = commandline.SandboxUsageError
	}
	return c
}

// imageCommandLike is the end of the sentence about an unknown command: ours for a command of Docker's, or the nearest name.
func commandLike(cmd *cli.Command, typed string) string {
	ours := map[string]string{
		"load": "image import FILE", "build": "image import DIR, for a root file system that another program has built",
		"list": "image ls", "remove": "image rm NAME", "tag": "image import or image pull, with --name NAME",
	}
	if line, ok := ours[typed]; ok {
		return "; use: " + line
	}
	return commandline.DidYouMean(commandline.CommandNames(cmd), typed, "")
}

func printIndented(w io.Writer, value any) error {
	var b bytes.Buffer
	out := json.NewEncoder(&b)
	out.SetIndent("", "  ")
	if err := out.Encode(value); err != nil {
		return err
	}
	_, err := io.WriteString(w, escapedJSON(b.String()))
	return err
}

// escapedJSON is the same JSON without characters that a terminal might obey. They can be in texts only. Package json
// escapes only those below the space.
func escapedJSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r == '\n' || unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// shortID is the beginning of a digest, as Docker prints it.
func shortID(digest string) string {
	const length = 12
	digits := strings.TrimPrefix(digest, "sha256:")
	return digits[:min(length, len(digits))]
}

// familiar is a name without the defaults that Docker fills in.
func familiar(name string) string {
	n, err := imagename.Parse(name)
	if err != nil {
		return name
	}
	return n.Familiar()
}

// repositoryAndTag are the columns of a name in image ls.
func repositoryAndTag(name string) (repository, tag string) {
	n, err := imagename.Parse(name)
	if err != nil {
		return name, noName
	}
	return n.FamiliarRepository(), cmp.Or(n.Tag, noName)
}

// noName stands for a missing name or tag.
const noName = "<none>"

// eachImage does something with each of the images that the arguments name, also after an error.
func eachImage(cmd *cli.Command, do func(name string) error) error {
	var failed []error
	for _, name := range cmd.Args().Slice() {
		failed = append(failed, do(name))
	}
	return errors.Join(failed...)
}

// Names are the names of the images of this user.
func Names(ctx context.Context, cmd *cli.Command) (names []string) {
	_ = connection.WithSandboxes(ctx, cmd.Root(), func(m *connection.Sandboxes) error { // a completion has no place for an error
		all, err := m.Images(ctx)
		for _, i := range all {
			for _, r := range i.References {
				names = append(names, familiar(r.Name))
			}
		}
		return err
	})
	return names
}
