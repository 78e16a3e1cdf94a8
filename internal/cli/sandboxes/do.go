package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/review"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/changes"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/configflags"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/relay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Do makes the command do.
func Do() *cli.Command {
	return &cli.Command{
		Name:      "do",
		Usage:     "run one command in a fresh sandbox and remove the sandbox",
		ArgsUsage: "[--] COMMAND [ARG...]",
		Description: `The command runs as uid 1000 without any capability. It sees the host's programs
read-only and an empty workspace, which is removed at the end. It has no network
and sees nothing else of the host.

    sandbox-runtime do -- python3 -c 'print(6 * 7)'
    sandbox-runtime do --workspace . --timeout 30s -- make test
    sandbox-runtime do --json --memory 256m -- ./untrusted | jq .reason

The exit status is the command's own. Other values: 124 timed out, 125 the runtime
failed, 126 not executable, 127 not found, 128+n killed by signal n.

--review asks at the end about the changes in overlays. Only an answer discards
changes. Without an answer (Ctrl-C, Ctrl-D, a signal or a closed terminal) the sandbox
stays up, and the commands to come back to it are printed. If there is no terminal,
the end of the input discards the changes.`,
		Flags:                  doFlags(),
		UseShortOptionHandling: true,
		StopOnNthArg:           new(1),
		Action:                 concluding(do),
		OnUsageError:           doUsageError,
	}
}

// doFlags are those of the sandbox and those of its one command.
func doFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.BoolFlag{Name: "interactive", Aliases: []string{"i"}, Usage: "pass standard input on"},
		&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "give it a terminal of its own"},
		&cli.BoolFlag{Name: "local", Usage: "no sandbox: run on the host, in the workspace"},
		commandline.JSONFlag("print one Result in JSON, output included, and nothing else"),
		&cli.BoolFlag{Name: "review", Usage: "ask at the end about the changes in overlays (default with -it)"},
		&cli.BoolFlag{Name: "apply", Usage: "write changes in overlays to the host at the end, with any exit status"},
		&cli.BoolFlag{Name: "keep", Usage: "leave the sandbox up at the end, with its changes"},
		images.PullFlag(),
	}, configflags.Flags()...)
}

// doUsageError words the library's error with the flag as it was typed, and prints a
// Result if one was asked for.
func doUsageError(ctx context.Context, cmd *cli.Command, err error, sub bool) error {
	err = commandline.UsageError(ctx, cmd, commandline.UnknownFlag(cmd, err), sub)
	if slices.Contains(os.Args, "--json") {
		err = printResult(failure("", err)) // which has the error
	}
	return &commandline.ExitError{Code: spec.ExitRuntimeFailed, Err: err}
}

// failure is the Result of a command that was never run. It claims no isolation and no limits.
func failure(id string, err error) spec.Result {
	return spec.Result{ID: id, Status: spec.StatusError, ExitCode: -1, Reason: err.Error()}
}

func printResult(r spec.Result) error {
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// concluding is an action that runs a command in a sandbox, and concludes.
func concluding(run func(context.Context, *cli.Command) (spec.Result, error)) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		result, err := run(ctx, cmd)
		return conclude(cmd.Bool("json"), result, err)
	}
}

// conclude turns the end of a command into an exit status and a message: a Result, if one
// was asked for, or a sentence if the command did not end by itself.
func conclude(inJSON bool, result spec.Result, err error) error {
	code := result.ExitCode
	if result.Status == spec.StatusError && code == 0 { // of a transaction that did not join
		code = spec.ExitRuntimeFailed
	}
	if err != nil {
		code = spec.ExitRuntimeFailed
		if notRun, ok := errors.AsType[*sandbox.NotRunError](err); ok {
			code = notRun.Code
		}
		if result.Status != spec.StatusError {
			result = failure(result.ID, err)
		}
		result.Reason = err.Error()
	}
	switch {
	case inJSON:
		if err := printResult(result); err != nil {
			return &commandline.ExitError{Code: spec.ExitRuntimeFailed, Err: err, Plain: true}
		}
	case err != nil:
		return &commandline.ExitError{Code: code, Err: err, Plain: true}
	case result.Status == spec.StatusExited:
		tellLimits(result)
	case result.Signal == "SIGPIPE" && !review.IsTerminal(os.Stdout): // as by "| head": the reader has enough
	default:
		return &commandline.ExitError{Code: code, Err: errors.New(result.Reason), Plain: true}
	}
	return commandline.ExitWith(code)
}

// tellLimits says why a command that ended by itself may not have done its work. A terminal gets a reason with a
// cause: the exit code alone is nothing new, as that of false and grep -q. The reason of a success has no refusals of
// the network. In any case stderr gets the reason why the sandbox's files cannot be trusted. The exit status stays the
// command's own.
func tellLimits(r spec.Result) {
	if _, _, hasCause := strings.Cut(r.Reason, "; "); hasCause && review.IsTerminal(os.Stderr) {
		fmt.Fprintf(os.Stderr, "%s: %s\n", commandline.Program, streams.Escaped(r.Reason))
		return
	}
	if !r.Damaged {
		return
	}
	for _, v := range r.Violations {
		if strings.Contains(v.Detail, sandbox.ErrDamaged.Error()) {
			fmt.Fprintf(os.Stderr, "%s: %s\n", commandline.Program, v.Detail)
		}
	}
}

func do(ctx context.Context, cmd *cli.Command) (_ spec.Result, err error) {
	if cmd.Args().Present() && cmd.Args().First() == "" {
		return spec.Result{}, relay.ErrEmptyCommand
	}
	early, cancel := context.WithCancel(ctx)
	defer cancel()
	connected := connection.OpenEarly(early, cmd)
	streams, err := streamsOf(cmd)
	if err != nil {
		return spec.Result{}, err
	}
	config, err := configflags.Config(cmd)
	if err != nil {
		return spec.Result{}, err
	}
	switch {
	case !cmd.Args().Present() && config.Image == "":
		return spec.Result{}, errors.New("no command; write it after --, as in: do -- python3 x.py")
	case cmd.Bool("local") && config.Image != "":
		return spec.Result{}, errors.New("--image: there is no sandbox with --local; leave one of the two out")
	}
	fate, notes, err := changes.FateOf(cmd, config)
	if err != nil {
		return spec.Result{}, err
	}
	var options []sandbox.CreateOption
	if !fate.MayStay() {
		options = append(options, sandbox.Tied())
	}
	if cmd.Bool("local") {
		options = append(options, sandbox.Using("local"))
	} else {
		connection.WakeCgroups(cmd)
	}
	ctx, signals := connection.Catch(ctx, cmd)
	defer signals.Stop()
	defer context.AfterFunc(ctx, cancel)()
	m, err := connected()
	if err != nil {
		return spec.Result{}, relay.CauseOf(ctx, err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	var pulled []string // notes of the pull
	note := images.TellNote(cmd)
	if cmd.Bool("json") {
		note = func(line string) { pulled = append(pulled, line) }
	}
	image, err := images.Take(ctx, cmd, m.Manager, config, note)
	if err != nil {
		return spec.Result{}, relay.CauseOf(ctx, err)
	}
	var command sandbox.Command
	if command.Args, err = commandOf(config, image, cmd.Args().Slice()); err != nil {
		return spec.Result{}, err
	}
	box, err := m.Create(ctx, config, options...)
	if err != nil {
		return spec.Result{}, configflags.AsTyped(cmd, relay.CauseOf(ctx, err))
	}
	defer func() { err = errors.Join(err, fate.End(box)) }()
	streams.Watch = tellsVanished(cmd, config)
	result, err := relay.Run(ctx, box, command, streams, signals, nil)
	if err != nil {
		err = fate.Interrupted(ctx, box, err)
	} else {
		err = fate.Conclude(ctx, box, signals)
	}
	result.Notes = slices.Concat(result.Notes, pulled, notes())
	if streams.Watch && !fate.Stay {
		review.TellVanished(os.Stderr, result.Files, config)
	}
	return result, err
}

// tellsVanished says whether a terminal gets the number of files that vanish with the
// sandbox's own workspace.
func tellsVanished(cmd *cli.Command, c spec.Config) bool {
	return review.IsTerminal(os.Stderr) && c.Workspace == "" && !cmd.Bool("json") && !cmd.Bool("local")
}

// commandOf is the command line of a sandbox: the words, or with an image the words behind its entrypoint.
func commandOf(c spec.Config, image spec.ImageConfig, words []string) ([]string, error) {
	if c.Image == "" {
		return words, nil
	}
	command := image.Command(words)
	if len(command) == 0 {
		return nil, errors.New("the image has no command; write one after --, as in: do --image IMAGE -- sh")
	}
	return command, nil
}
