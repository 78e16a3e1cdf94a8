package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/review"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/oci"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// List makes the command list.
func List() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the containers below --root",
		Description: `A sandbox that was made or removed only in part is stopped: prune removes the rest.
A container that cannot be loaded, for example since it is being deleted, is left
out, and stderr has the reason.

    # ` + commandline.Program + ` list
    # ` + commandline.Program + ` list --json | jq -r '.[] | select(.status == "running") | .id'
    # ` + commandline.Program + ` --root /run/docker/runtime-runc/moby list -q`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "format", Aliases: []string{"f"}, Value: "table", Usage: "table or json"},
			commandline.JSONFlag("the same as --format json, but an empty list is []"),
			commandline.QuietFlag("print ids only"),
		},
		Action: commandline.WithArgs(0, 0, listContainers),
	}
}

func listContainers(ctx context.Context, cmd *cli.Command) error {
	show, err := listPrinter(cmd)
	if err != nil {
		return err
	}
	var states []container.State
	ofLauncher := cmd.IsSet("socket")
	if !ofLauncher {
		if states, err = ownStates(cmd); err != nil && !isMissing(cmd, err) {
			return err
		}
		ofLauncher = err != nil || defaultListens(cmd) || hasOnlyListed(cmd)
	}
	var listed []container.State
	if ofLauncher {
		if listed, err = listedStates(ctx, cmd); err != nil && len(states) == 0 {
			return err
		}
	}
	states = append(states, listed...)
	if states == nil && !cmd.IsSet("format") { // --json is no flag of runc's: null would stop the jq of a script
		states = []container.State{}
	}
	return errors.Join(err, show(cmd.Root().Writer, states))
}

// ownStates are the containers and sandboxes of the state root.
func ownStates(cmd *cli.Command) ([]container.State, error) {
	root := commandline.StateRoot(cmd)
	ids, err := IDs(root)
	if errors.Is(err, os.ErrNotExist) && !cmd.IsSet("root") {
		return nil, nil // no container has been made yet
	}
	if err != nil {
		return nil, err
	}
	return loadStates(root, ids, cmd.Root().ErrWriter), nil
}

// IDs are the ids of the containers and sandboxes below a state root. The rests of failed removals are
// among them. Sandboxes that are not made yet, such as the blanks of a pool, are not.
func IDs(root string) ([]string, error) {
	ids, err := container.IDs(root)
	if err != nil {
		return nil, err
	}
	roots := record.Roots{State: root}
	sandboxes, err := os.ReadDir(roots.Sandboxes())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range sandboxes {
		if record.IsRest(roots.Dir(e.Name())) {
			ids = append(ids, e.Name())
		}
	}
	ids = slices.DeleteFunc(ids, func(id string) bool {
		dir := roots.Dir(id)
		return record.IsPending(dir) || record.IsBlank(dir) // prune removes a blank of an ended launcher
	})
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// loadStates leaves out containers that cannot be read, such as one that was deleted
// meanwhile, and says so: on stderr also if there is a log, as runc.
func loadStates(root string, ids []string, stderr io.Writer) []container.State {
	var states []container.State
	for _, id := range ids {
		s, err := loadState(root, id)
		if err != nil {
			fmt.Fprintf(stderr, "load container %s: %v\n", id, err)
			continue
		}
		states = append(states, s)
	}
	return states
}

func loadState(root, id string) (container.State, error) {
	c, err := container.Load(root, id)
	dir := record.Roots{State: root}.Dir(id)
	if errors.Is(err, container.ErrNotExist) && record.IsRest(dir) {
		return restState(dir)
	}
	if err != nil {
		return container.State{}, err
	}
	s, err := c.State()
	if err != nil {
		return container.State{}, err
	}
	if r, err := record.Read(dir); err == nil {
		s.Created = r.Created // the container can have been a blank for a while before that
		if statedir.RemovalBegun(dir) {
			s.Status = container.Stopped
		}
	}
	s.Status = statusOf(dir, s.Status)
	s.Owner, err = c.Owner()
	return s, err
}

// statusOf is the status of a container, or of the sandbox with a directory: a sandbox that the runtime itself
// keeps still for a moment is running.
func statusOf(dir string, s container.Status) container.Status {
	if s != container.Paused {
		return s
	}
	if r, err := record.Read(dir); err == nil && r.StandsStill() {
		return container.Running
	}
	return s
}

// printOwnState prints the state of a sandbox of the state root.
func printOwnState(_ context.Context, cmd *cli.Command, c *container.Container) error {
	s, err := c.State()
	if err != nil {
		return err
	}
	s.Status = statusOf(record.Roots{State: commandline.StateRoot(cmd)}.Dir(c.ID()), s.Status)
	return oci.WriteState(cmd, s)
}

// restState is the state of a sandbox that was made or removed only in part. Perhaps only its directory is left.
func restState(dir string) (container.State, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return container.State{}, err
	}
	return listedState(sandbox.Info{ID: info.Name(), State: sandbox.StateStopped, Created: info.ModTime()}), nil
}

// wantsJSON says that --format or --json asks for JSON in place of a table.
func wantsJSON(cmd *cli.Command) (bool, error) {
	switch format := cmd.String("format"); {
	case cmd.Bool("json") && !cmd.IsSet("format"), format == "json":
		return true, nil
	case format == "table":
		return false, nil
	}
	return false, errors.New("invalid format option")
}

func listPrinter(cmd *cli.Command) (func(io.Writer, []container.State) error, error) {
	if cmd.Bool("quiet") {
		return printIDs, nil
	}
	if inJSON, err := wantsJSON(cmd); err != nil || inJSON {
		return printJSON, err
	}
	return printTable, nil
}

func printIDs(w io.Writer, states []container.State) error {
	return commandline.PrintEach(w, states, func(s container.State) string { return s.ID })
}

func printTable(w io.Writer, states []container.State) error {
	t := tabwriter.NewWriter(w, 12, 1, 3, ' ', 0)
	fmt.Fprint(t, "ID\tPID\tSTATUS\tBUNDLE\tCREATED\tOWNER\n")
	for _, s := range states {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\n",
			s.ID, s.Pid, s.Status, s.Bundle, whenText(w, s.Created), s.Owner)
	}
	return t.Flush()
}

// whenText is a time in a table: for a person at a terminal the time since then.
func whenText(w io.Writer, at time.Time) string {
	if review.IsTerminal(w) {
		return units.HumanDuration(time.Since(at)) + " ago"
	}
	return at.Format(time.RFC3339Nano)
}

func printJSON(w io.Writer, states []container.State) error {
	return json.NewEncoder(w).Encode(states) // null for none, as runc
}
