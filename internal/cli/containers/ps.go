package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/processes"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/oci"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// PS makes the command ps.
func PS() *cli.Command {
	return &cli.Command{
		Name:      "ps",
		Usage:     "list the processes of a container",
		ArgsUsage: "<container-id> [ps option...]",
		Description: `Shows the lines of the host's ps(1) for the processes of the container. The options
are those of ps, by default -ef. They must leave a column PID. The process ids are
those of the caller's pid namespace. --json prints only the ids. The users of a
sandbox have their names inside; an id that its /etc/passwd does not have is a number.

    # ` + commandline.Program + ` ps web -eo pid,rss,args
    # ` + commandline.Program + ` ps --json web
    [4711,4730]

--execs shows the commands that "exec" has started in a sandbox: the running ones, and
the detached ones that have ended and whose result nobody has asked for.

    # ` + commandline.Program + ` ps --execs box`,
		StopOnNthArg: new(1), // the rest is for ps
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "format", Aliases: []string{"f"}, Value: "table", Usage: "table or json"},
			commandline.JSONFlag("the same as --format json"),
			&cli.BoolFlag{Name: "execs", Usage: "sandbox: its commands in place of their processes"},
		},
		Action: commandline.WithArgs(1, -1, listProcesses),
	}
}

func listProcesses(ctx context.Context, cmd *cli.Command) error {
	if cmd.Bool("execs") {
		return commandline.WithArgs(1, 1, listExecs)(ctx, cmd)
	}
	find := containerProcesses
	if namesListed(cmd) {
		find = listedProcesses
	}
	pids, err := find(ctx, cmd)
	if err != nil {
		return err
	}
	w := cmd.Root().Writer
	inJSON, err := wantsJSON(cmd)
	if err != nil {
		return err
	}
	if inJSON {
		return json.NewEncoder(w).Encode(pids) // null for none, as runc
	}
	return processes.Print(ctx, w, pids, cmd.Args().Tail(), usersIn(ctx, cmd, pids))
}

// containerProcesses are the processes of an OCI container, or of a sandbox of the state root.
func containerProcesses(ctx context.Context, cmd *cli.Command) ([]int, error) {
	c, err := commandline.LoadContainer(cmd)
	if err != nil {
		return nil, err
	}
	pids, err := c.Processes()
	hintAtCgroups(commandline.LogFrom(ctx), cmd.Name, err)
	return pids, err
}

// listedProcesses are the processes of the commands in a sandbox of a launcher that listens. A
// launcher tells nothing of the sandbox's first process.
func listedProcesses(ctx context.Context, cmd *cli.Command) (pids []int, err error) {
	err = connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		execs, err := box.Execs(ctx)
		for _, e := range execs {
			pids = append(pids, e.Pids...)
		}
		return err
	})
	return pids, err
}

// usersIn are the users of a sandbox that has processes; nil for an OCI container. The names are in a
// file of the sandbox. A sandbox that does not give the file has numbers.
func usersIn(ctx context.Context, cmd *cli.Command, pids []int) *processes.Users {
	if len(pids) == 0 || !namesSandbox(cmd) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var passwd []byte
	err := connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		file, err := box.Files().Open(ctx, "/etc/passwd", 0, spec.MaxUserFile)
		if err != nil {
			return err
		}
		defer file.Close()
		passwd, err = io.ReadAll(file)
		return err
	})
	if err != nil {
		commandline.LogFrom(ctx).Debug("names of users", "error", err)
	}
	return processes.UsersOf(pids, passwd)
}

func listExecs(ctx context.Context, cmd *cli.Command) error {
	inJSON, err := wantsJSON(cmd)
	if err != nil {
		return err
	}
	if !namesSandbox(cmd) {
		if err := connection.CheckAccess(cmd); err != nil {
			return err
		}
		if _, err := commandline.LoadContainer(cmd); errors.Is(err, container.ErrNotExist) {
			return &sandbox.Error{ID: cmd.Args().First(), Err: sandbox.ErrNotFound}
		} else if err != nil {
			return err
		}
		return oci.OnlyForSandboxes(cmd, "execs")
	}
	return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		execs, err := box.Execs(ctx)
		if err != nil {
			return err
		}
		if inJSON {
			return json.NewEncoder(cmd.Root().Writer).Encode(append([]sandbox.ExecInfo{}, execs...)) // in JSON no null
		}
		return printExecs(cmd.Root().Writer, execs)
	})
}

func printExecs(w io.Writer, execs []sandbox.ExecInfo) error {
	t := tabwriter.NewWriter(w, 12, 1, 3, ' ', 0)
	fmt.Fprint(t, "ID\tSTATUS\tSTARTED\tPIDS\tCOMMAND\n")
	for _, e := range execs {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n",
			e.ID, execStatus(e), whenText(w, e.Started), joinPids(e.Pids), commandline.ShellWords(e.Args))
	}
	return t.Flush()
}

func execStatus(e sandbox.ExecInfo) string {
	switch {
	case e.Ended:
		return "ended"
	case e.Detached:
		return "detached"
	}
	return "attached"
}

func joinPids(pids []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(pids), "[]"), " ", ",")
}
