package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/oci"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func listExecs(ctx context.Context, cmd *cli.Command) error {
	if err := commandline.WantArgs(cmd, 1, 1); err != nil {
		return err
	}
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
