package changes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Snapshot makes the command snapshot.
func Snapshot() *cli.Command {
	return &cli.Command{
		Name:      "snapshot",
		Usage:     "keep a sandbox's files for other sandboxes to begin with",
		ArgsUsage: "NAME SNAP",
		Description: `Keeps the present files of the sandbox: those in its overlays, in its own workspace and
in its home. Nothing is copied. "up --from SNAP" makes any number of sandboxes that begin
with these files. The sandbox's files have to be on disk, which is the default of "up".

    sandbox-runtime snapshot box ready
    sandbox-runtime up --from ready box-2
    sandbox-runtime snapshot --list
    sandbox-runtime snapshot --remove ready`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "list", Usage: "print the names of all snapshots"},
			commandline.JSONFlag("print the snapshots of --list as a JSON array"),
			&cli.StringFlag{Name: "remove", Usage: "remove the snapshot `SNAP`; sandboxes that began with it go on"},
		},
		Action: snapshot,
	}
}

func snapshot(ctx context.Context, cmd *cli.Command) error {
	if err := CheckSnapshotFlag(cmd, "remove"); err != nil {
		return err
	}
	list, remove := cmd.Bool("list"), cmd.String("remove")
	switch none := !list && remove == ""; {
	case cmd.Bool("json") && !list:
		return errors.New("--json is for --list, as in: snapshot --list --json")
	case list && remove != "":
		return errors.New("--list and --remove do not go together; say one of them")
	case !none && cmd.Args().Present():
		return fmt.Errorf("%q is one name too many: --list takes no name, and --remove takes one snapshot", cmd.Args().First())
	case none && cmd.NArg() != 2:
		return errors.New("say the sandbox, and a name for the snapshot, as in: snapshot box ready")
	}
	switch {
	case remove != "":
		return connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
			if err := m.RemoveSnapshot(ctx, remove); err != nil {
				return NoSnapshot(cmd, err)
			}
			fmt.Fprintf(cmd.Root().ErrWriter, "removed the snapshot %s\n", remove)
			return nil
		})
	case list:
		return connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
			names, err := m.Snapshots(ctx)
			if err != nil {
				return err
			}
			return printSnapshots(cmd.Root().Writer, names, cmd.Bool("json"))
		})
	}
	return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		name := cmd.Args().Get(1)
		if err := box.Snapshot(ctx, name); err != nil {
			return err
		}
		fmt.Fprintf(cmd.Root().ErrWriter, "kept the files of %s as the snapshot %s; to begin with them: %s up --from %[2]s NAME\n",
			box.ID(), name, commandline.ProgramWithDirs(cmd))
		return nil
	})
}

// snapshotEntry is one snapshot in JSON.
type snapshotEntry struct {
	Name string `json:"name"`
}

func printSnapshots(w io.Writer, names []string, asJSON bool) error {
	if !asJSON {
		return commandline.PrintEach(w, names, func(name string) string { return name })
	}
	entries := []snapshotEntry{} // in JSON no null
	for _, name := range names {
		entries = append(entries, snapshotEntry{name})
	}
	return json.NewEncoder(w).Encode(entries)
}

// Discard makes the command discard.
func Discard() *cli.Command {
	return &cli.Command{
		Name:      "discard",
		Usage:     "throw away the writes to a sandbox's overlays",
		ArgsUsage: "NAME",
		Description: `The overlays show the host's directories again, or the files of the snapshot with which the
sandbox has begun. If a process has a file open there, or its working directory, nothing is
thrown away, and the error names the process.

    sandbox-runtime discard box`,
		Action: commandline.WithHint(1, 1, "say the name of one sandbox, as in: discard box", discard),
	}
}

func discard(ctx context.Context, cmd *cli.Command) error {
	return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		if err := box.Discard(ctx); err != nil {
			return err
		}
		fmt.Fprintf(cmd.Root().ErrWriter, "discarded the writes to the overlays of %s\n", box.ID())
		return nil
	})
}

// CheckSnapshotFlag refuses a flag for a snapshot that a script's unset variable has left
// empty: it means something else to have none.
func CheckSnapshotFlag(cmd *cli.Command, flag string) error {
	if cmd.IsSet(flag) && cmd.String(flag) == "" {
		return fmt.Errorf("--%s: is empty; name a snapshot (%s snapshot --list)", flag, commandline.ProgramWithDirs(cmd))
	}
	return nil
}

// NoSnapshot adds to an error about a missing snapshot the command that lists the snapshots.
func NoSnapshot(cmd *cli.Command, err error) error {
	if !errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w (%s snapshot --list shows those that there are)", err, commandline.ProgramWithDirs(cmd))
}
