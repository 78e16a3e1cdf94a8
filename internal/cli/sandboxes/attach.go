package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/relay"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Attach makes the command attach.
func Attach() *cli.Command {
	return &cli.Command{
		Name:      "attach",
		Usage:     "show the output of a detached command, until it ends",
		ArgsUsage: "NAME EXEC",
		Description: `Prints the output that the sandbox has kept, then new output, and ends with the
command's exit status, as "exec" does. After that the sandbox forgets the command. If
attach is interrupted, the command goes on.

    sandbox-runtime exec --detach box make test
    sandbox-runtime ps --execs box
    sandbox-runtime attach box EXEC
    sandbox-runtime attach --kill box EXEC`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "kill", Usage: "first end the command and all its processes"},
			commandline.JSONFlag("print one Result in JSON, output included, and nothing else"),
		},
		Action:       concluding(attachToExec),
		OnUsageError: doUsageError,
	}
}

func attachToExec(ctx context.Context, cmd *cli.Command) (spec.Result, error) {
	if cmd.NArg() != 2 {
		return spec.Result{}, errors.New("say the sandbox and the command, as exec --detach and ps --execs print it")
	}
	// No signal is for the command: they end the attaching.
	return inSandbox(ctx, cmd, func(ctx context.Context, box *sandbox.Sandbox, _ *relay.Signals) (spec.Result, error) {
		none := spec.Result{ID: box.ID()}
		stdout, stderr := io.Writer(os.Stdout), io.Writer(os.Stderr)
		if cmd.Bool("json") {
			stdout, stderr = nil, nil // the Result has the output
		}
		p, err := box.Attach(ctx, cmd.Args().Get(1), stdout, stderr)
		if err != nil {
			return none, relay.CauseOf(ctx, err)
		}
		defer func() { _ = p.Close() }() // Wait has returned the error
		if cmd.Bool("kill") {
			if err := p.Kill(); err != nil {
				return none, err
			}
		}
		result, err := p.Wait()
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w; the command goes on", relay.CauseOf(ctx, err))
		}
		if !cmd.Bool("json") {
			for i, omitted := range []int64{result.StdoutOmitted, result.StderrOmitted} {
				if omitted > 0 {
					tellOmitted(i == 1, omitted)
				}
			}
		}
		return result, err
	})
}
