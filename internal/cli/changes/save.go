package changes

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/review"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Save makes the command save.
func Save() *cli.Command {
	return &cli.Command{
		Name:      "save",
		Usage:     "write the changes of a sandbox in its overlays to a file",
		ArgsUsage: "NAME FILE",
		Description: `FILE ends in .tar, for an archive in the form of an OCI layer, or in .patch, for
a diff that "git apply" takes. The standard error lists the paths that FILE does not
hold. FILE must not exist yet.`,
		Action: withChanges(func(ctx context.Context, cmd *cli.Command, c *sandbox.Changes) error {
			if cmd.NArg() != 2 {
				return errors.New("say the sandbox and one file, as in: save box changes.tar")
			}
			name, talk := cmd.Args().Get(1), &review.Conversation{Out: cmd.Root().ErrWriter}
			leftOut, err := review.Save(ctx, talk, c, name)
			if err == nil && len(leftOut) > 0 && !review.IsArchive(name) {
				talk.Say("a file that ends in .tar holds all of these but sockets and devices")
			}
			return err
		}),
	}
}
