package oci

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
)

// Words are the two forms of errors of the OCI commands: the form of runc for programs, and one
// sentence for persons.
type Words struct {
	// Missing returns the answer to a name that nothing has, or nil if the error of the action has
	// another cause.
	Missing func(context.Context, *cli.Command, error) error
	// IsSandbox says that the first argument names a sandbox.
	IsSandbox func(*cli.Command) bool
}

// forSandboxes are the OCI commands that also work on sandboxes.
var forSandboxes = []string{"state", "kill", "delete", "exec", "list", "ps", "pause", "resume", "events", "update"}

// runName is the name of the command that persons take for docker run.
const runName = "run"

// Errors is an action whose errors have the form for the caller. A caller that gives one of runc's flags
// for logs gets runc's words.
func (w Words) Errors(do cli.ActionFunc) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		err := do(ctx, cmd)
		code, message := commandline.ExitCode(err)
		if message == nil || SpeaksAsRunc(cmd) {
			return err
		}
		if cmd.Args().Present() {
			if named := w.Missing(ctx, cmd, err); named != nil {
				return &commandline.ExitError{Code: code, Plain: true, Err: named}
			}
		}
		if !w.areForPerson(cmd) {
			return err
		}
		if cmd.Name == runName && lacksBundle() {
			message = fmt.Errorf("%w; %s", message, commandline.HintOfRun)
		}
		return &commandline.ExitError{Code: code, Plain: true, Err: message}
	}
}

// Usage is the error of wrong flags, in the form for the caller.
func (w Words) Usage(ctx context.Context, cmd *cli.Command, err error, sub bool) error {
	if !w.areForPerson(cmd) {
		return commandline.UsageError(ctx, cmd, err, sub)
	}
	return &commandline.ExitError{Code: 1, Plain: true, Err: commandline.SandboxUsageError(ctx, cmd, err, sub)}
}

// areForPerson says that the errors are for a person. A person names a sandbox, or uses neither a flag of
// engines nor an OCI container.
func (w Words) areForPerson(cmd *cli.Command) bool {
	switch {
	case SpeaksAsRunc(cmd):
		return false
	case !slices.Contains(forSandboxes, cmd.Name):
		return cmd.Name == runName && !cmd.Root().IsSet("root") && !cmd.IsSet("bundle")
	case w.IsSandbox(cmd):
		return true
	case cmd.Root().IsSet("root"):
		return false
	}
	_, err := commandline.LoadContainer(cmd)
	return err != nil
}

// lacksBundle says that the working directory is no bundle.
func lacksBundle() bool {
	_, err := os.Lstat(frontend.ConfigName)
	return err != nil
}

// SpeaksAsRunc says that the caller gives one of runc's flags for logs: a program that expects runc's
// words.
func SpeaksAsRunc(cmd *cli.Command) bool {
	return slices.ContainsFunc([]string{"log", "log-format", "debug"}, cmd.Root().IsSet)
}

// Missing is the error of a name that no container and no sandbox of the state root has.
func Missing(cmd *cli.Command) error {
	if cmd.Name == "start" {
		return fmt.Errorf("%s does not exist: no container has this name; a sandbox is made and started by: %s up NAME", cmd.Args().First(), commandline.Program)
	}
	return fmt.Errorf("%s does not exist: no sandbox or container has this name (see %s list)", cmd.Args().First(), commandline.Program)
}
