package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Logs makes the command logs.
func Logs() *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "show the kept output of detached commands",
		ArgsUsage: "NAME [EXEC]",
		Description: `Prints the output that the sandbox has kept of one detached command, or of all of them,
each below a line with its id. The result stays for "attach", after which nothing is kept.

    sandbox-runtime exec --detach box make test
    sandbox-runtime logs box
    sandbox-runtime logs --follow box EXEC
    sandbox-runtime logs --tail 20 --since 10m box EXEC

Of long output the sandbox keeps the head and the tail, as many bytes of each stream as
"exec --detach --log-size" said. A line on stderr says where bytes are missing, and how many.
The times of --since count whole seconds; output from before the time, by up to 1/32 of its
age, may come, too.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with new output until the command ends"},
			&cli.StringFlag{Name: "tail", Aliases: []string{"n"}, Usage: "begin with the last `N` lines of each stream, or with all", Value: "all"},
			&cli.StringFlag{Name: "since", Usage: "leave out output from before a `TIME`: a duration before now, as 10m, or a time as 2006-01-02T15:04:05Z"},
		},
		Action: commandline.WithHint(1, 2, "say the sandbox, and the command if it is not all, as in: logs box", logs),
	}
}

func logs(ctx context.Context, cmd *cli.Command) error {
	options, err := logOptions(cmd)
	if err != nil {
		return err
	}
	return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		if exec := cmd.Args().Get(1); cmd.NArg() == 2 {
			return box.CopyLogs(ctx, exec, options)
		}
		execs, err := box.Execs(ctx)
		if err != nil {
			return err
		}
		execs = slices.DeleteFunc(execs, func(e sandbox.ExecInfo) bool { return !e.Detached })
		switch {
		case len(execs) == 0:
			fmt.Fprintf(cmd.Root().ErrWriter, "%s keeps no output: it has no detached command (exec --detach starts one)\n", box.ID())
		case len(execs) > 1 && cmd.Bool("follow"):
			return fmt.Errorf("%s has %d detached commands; say which one to follow (%s ps --execs %s)", box.ID(), len(execs), commandline.ProgramWithDirs(cmd), box.ID())
		}
		return logsOf(ctx, options, box, execs)
	})
}

// logsOf prints the output of commands. A single command has no heading.
func logsOf(ctx context.Context, options sandbox.LogOptions, box *sandbox.Sandbox, execs []sandbox.ExecInfo) error {
	for _, e := range execs {
		if len(execs) > 1 {
			if _, err := fmt.Fprintf(os.Stdout, "==> %s %s <==\n", e.ID, commandline.ShellWords(e.Args)); err != nil {
				return err
			}
		}
		err := box.CopyLogs(ctx, e.ID, options)
		if len(execs) > 1 && errors.Is(err, sandbox.ErrNotFound) {
			continue // a client has taken its result this moment
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// logOptions are the flags of the command.
func logOptions(cmd *cli.Command) (sandbox.LogOptions, error) {
	o := sandbox.LogOptions{Stdout: os.Stdout, Stderr: os.Stderr, Follow: cmd.Bool("follow"), Omitted: tellOmitted}
	if tail := cmd.String("tail"); tail != "all" {
		n, err := strconv.ParseUint(tail, 10, 31)
		if err != nil {
			return o, fmt.Errorf("--tail %q: write a number of lines, or all", tail)
		}
		o.Tail = cmp.Or(int(n), -1)
	}
	if since := cmd.String("since"); since != "" {
		at, err := time.Parse(time.RFC3339Nano, since)
		if err != nil {
			var before spec.Duration
			if before.UnmarshalText([]byte(since)) != nil || before < 0 {
				return o, fmt.Errorf("--since %q: write a duration, as 10m, or a time, as 2006-01-02T15:04:05Z", since)
			}
			at = time.Now().Add(-time.Duration(before))
		}
		o.Since = at
	}
	return o, nil
}

// tellOmitted says on stderr that a sandbox has not kept a part of a stream.
func tellOmitted(ofStderr bool, bytes int64) {
	stream := "standard output"
	if ofStderr {
		stream = "standard error"
	}
	fmt.Fprintf(os.Stderr, "%s: %d bytes in the middle of %s were not kept; exec --detach --log-size keeps more\n", commandline.Program, bytes, stream)
}
