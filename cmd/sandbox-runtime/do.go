package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func doCommand() *cli.Command {
	return &cli.Command{
		Name:      "do",
		Usage:     "run one command in a fresh sandbox and remove the sandbox",
		ArgsUsage: "[--] COMMAND [ARG...]",
		Category:  categorySandbox,
		Description: `The command sees the host's programs read-only, an empty workspace that
vanishes, no network and nothing else of the host, as uid 1000 without any
capability.

    sandbox-runtime do -- python3 -c 'print(6 * 7)'
    sandbox-runtime do --workspace . --timeout 30s -- make test
    sandbox-runtime do --json --memory 256m -- ./untrusted | jq .reason

The exit status is the command's own; 124 timed out, 125 the runtime failed,
126 not executable, 127 not found, 128+n killed by signal n.`,
		Flags:                  doFlags(),
		UseShortOptionHandling: true,
		StopOnNthArg:           new(1),
		Action:                 do,
		OnUsageError:           doUsageError,
	}
}

// doUsageError words the library's complaint with the flag as it was typed, and
// gives whoever asked for a Result one.
func doUsageError(ctx context.Context, cmd *cli.Command, err error, sub bool) error {
	if flag, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); unknown {
		err = errors.New("unknown flag --" + strings.TrimLeft(flag, "-"))
	}
	err = usageError(ctx, cmd, err, sub)
	if slices.Contains(os.Args, "--json") {
		err = errors.Join(err, printResult(failure("", err)))
	}
	return &exitError{code: spec.ExitRuntimeFailed, err: err}
}

// failure is the Result of a command that was never run.
func failure(id string, err error) spec.Result {
	return spec.Result{
		ID: id, Status: spec.StatusError, ExitCode: -1, Reason: err.Error(), Isolation: spec.IsolationNone,
		Limits: spec.NoLimits(),
	}
}

func printResult(r spec.Result) error {
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// do runs the command and turns what became of it into an exit status.
func do(ctx context.Context, cmd *cli.Command) error {
	result, err := doOnce(ctx, cmd)
	code := result.ExitCode
	if err != nil {
		code = spec.ExitRuntimeFailed
		var notRun *launcher.NotRunError
		if errors.As(err, &notRun) {
			code = notRun.Code
		}
		result = failure(result.ID, err)
	}
	if cmd.Bool("json") {
		if err := printResult(result); err != nil {
			return &exitError{code: spec.ExitRuntimeFailed, err: err}
		}
	}
	if err != nil {
		return &exitError{code: code, err: err}
	}
	if result.Status != spec.StatusExited && !cmd.Bool("json") {
		return &exitError{code: code, err: errors.New(result.Reason)}
	}
	return exitWith(code)
}

func doOnce(ctx context.Context, cmd *cli.Command) (spec.Result, error) {
	if !cmd.Args().Present() {
		return spec.Result{}, errors.New("no command; write it after --, as in: do -- python3 x.py")
	}
	if cmd.Bool("tty") && cmd.Bool("json") {
		return spec.Result{}, errors.New("--tty and --json do not go together: a terminal's output is not a Result")
	}
	config, err := doConfig(cmd)
	if err != nil {
		return spec.Result{}, err
	}
	if cmd.Bool("local") {
		return doLocal(ctx, cmd, config)
	}
	l, err := launcher.New(stateRoot(cmd))
	if err != nil {
		return spec.Result{}, err
	}
	return doSandboxed(ctx, cmd, l, config)
}
