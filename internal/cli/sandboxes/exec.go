package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/review"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/configflags"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/relay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// ExecFlags are those of exec that only a sandbox knows.
func ExecFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.BoolFlag{Name: "interactive", Aliases: []string{"i"}, Usage: "sandbox: pass standard input on"},
		commandline.JSONFlag("sandbox: print one Result in JSON, output included, and nothing else"),
		&cli.StringFlag{Name: "log-size", Usage: "sandbox: with --detach, `SIZE` of the output that is kept of each stream, half from its head and half from its tail (default: 8m)"},
		&cli.BoolFlag{Name: "transaction", Usage: "sandbox: keep the command's writes only if it succeeds"},
		&cli.StringFlag{Name: "timeout", Usage: "sandbox: `DURATION` after which the command and all its processes are ended"},
		&cli.StringFlag{Name: "grace", Usage: "sandbox: `DURATION` between SIGTERM and SIGKILL when the runtime ends the command (default: the sandbox's)"},
	}, configflags.ForLibrary(configflags.OfCommand())...)
}

// notForSandboxes are flags of exec that have no meaning in a sandbox, and why.
var notForSandboxes = map[string]string{
	"process":        "say the command and its flags instead; up --publish publishes ports",
	"console-socket": "a terminal of a sandbox is the caller's to serve; leave it out",
	"pidfd-socket":   "a command of a sandbox is followed by its id; leave it out",
	"preserve-fds":   "a sandbox gets no descriptors of its caller's",
	"process-label":  "a sandbox has no label",
	"apparmor":       "a sandbox has no profile of AppArmor",
	"cap":            "nothing in a sandbox has capabilities",
	"cgroup":         "each command of a sandbox has a cgroup of its own",
	"ignore-paused":  "a paused sandbox starts nothing; resume it first",
}

// Exec is the action of exec on a sandbox.
func Exec(ctx context.Context, cmd *cli.Command) error {
	return concluding(execInSandbox)(ctx, cmd)
}

// execInSandbox runs a command through the sandbox's agent. Its messages and its
// exit status are those of do.
func execInSandbox(ctx context.Context, cmd *cli.Command) (spec.Result, error) {
	none := spec.Result{ID: cmd.Args().First()}
	command, err := execCommandOf(cmd)
	if err != nil {
		return none, err
	}
	streams, err := streamsOf(cmd)
	if err != nil {
		return none, err
	}
	if review.IsTerminal(os.Stderr) && !streams.Keep {
		streams.JoinsLong = func() {
			end := "\n"
			if streams.Terminal && streams.Input { // the terminal is raw
				end = "\r\n"
			}
			fmt.Fprintf(os.Stderr, "%s: the command succeeded; waiting until all its writes have joined the files of %s%s", commandline.Program, none.ID, end)
		}
	}
	return inSandbox(ctx, cmd, func(ctx context.Context, box *sandbox.Sandbox, signals *relay.Signals) (spec.Result, error) {
		if err := checkLimits(ctx, cmd, box, command.Limits); err != nil {
			return none, relay.CauseOf(ctx, err)
		}
		if command.Detached {
			return execDetached(ctx, cmd, box, command)
		}
		announce := func(p *sandbox.Process) error { return writePidFile(ctx, cmd, box, p) }
		return relay.Run(ctx, box, command, streams, signals, announce)
	})
}

// streamsOf are the streams of a command that the flags describe.
func streamsOf(cmd *cli.Command) (*relay.Streams, error) {
	s := &relay.Streams{Input: cmd.Bool("interactive"), Terminal: cmd.Bool("tty"), Keep: cmd.Bool("json")}
	if s.Terminal && s.Keep {
		return nil, errors.New("--tty and --json do not go together: a terminal's output is not a Result")
	}
	return s, nil
}

// inSandbox runs a command in the sandbox that the first argument names, or attaches to one.
func inSandbox(ctx context.Context, cmd *cli.Command, run func(context.Context, *sandbox.Sandbox, *relay.Signals) (spec.Result, error)) (spec.Result, error) {
	result := spec.Result{ID: cmd.Args().First()}
	ctx, signals := connection.Catch(ctx, cmd)
	defer signals.Stop()
	err := connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		box, err := m.Get(ctx, result.ID)
		if err != nil {
			return relay.CauseOf(ctx, err)
		}
		result, err = run(ctx, box, signals)
		return err
	})
	return result, err
}

// checkLimits refuses a limit of a command above the limit of its sandbox, which holds in any case.
func checkLimits(ctx context.Context, cmd *cli.Command, box *sandbox.Sandbox, asked spec.Limits) error {
	if asked == (spec.Limits{}) {
		return nil
	}
	info, err := box.Info(ctx)
	if err != nil {
		return err
	}
	for _, l := range spec.LimitFields() {
		if l.OfCommand && l.Above(asked, info.Config.Limits) {
			flag := "--" + strings.ReplaceAll(l.Name, "_", "-") + " " + l.Text(asked)
			return fmt.Errorf("%s is above the limit of the sandbox, which is %s; raise that first: %s update %s %s",
				flag, l.Text(info.Config.Limits), commandline.ProgramWithDirs(cmd), flag, box.ID())
		}
	}
	return nil
}

// writePidFile writes the number of a command that runs to the file of --pid-file, if the flag is set.
func writePidFile(ctx context.Context, cmd *cli.Command, box *sandbox.Sandbox, p *sandbox.Process) error {
	path := cmd.String("pid-file")
	if path == "" {
		return nil
	}
	if err := p.Started(ctx); err != nil {
		return err
	}
	execs, err := box.Execs(ctx)
	if err != nil {
		return err
	}
	for _, e := range execs {
		if pid := oldest(e.Pids); e.ID == p.ID() && pid != 0 {
			return frontend.WritePidFile(path, pid)
		}
	}
	return nil // the command has ended, and another process can have the number
}

// oldest is the process that was started first, that is the command itself; 0 if
// none is there any more.
func oldest(pids []int) (first int) {
	var least uint64
	for _, pid := range pids {
		if started, err := process.Started(pid); err == nil && (first == 0 || started < least) {
			first, least = pid, started
		}
	}
	return first
}

// execDetached prints the id of the command, once the command runs. If the caller does not learn the id, execDetached ends
// the command.
func execDetached(ctx context.Context, cmd *cli.Command, box *sandbox.Sandbox, c sandbox.Command) (r spec.Result, err error) {
	r = spec.Result{ID: box.ID(), Status: spec.StatusExited} // of this program
	p, err := box.Start(ctx, c)
	if err != nil {
		return r, relay.CauseOf(ctx, err)
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := p.Started(ctx); err != nil {
		return r, relay.CauseOf(ctx, err)
	}
	err = writePidFile(ctx, cmd, box, p)
	if err == nil {
		_, err = fmt.Fprintln(cmd.Root().Writer, p.ID())
	}
	if err != nil {
		return r, endUnknown(p, relay.CauseOf(ctx, err))
	}
	return r, nil
}

// endUnknown ends a detached command whose caller does not learn its id because of cause.
func endUnknown(p *sandbox.Process, cause error) error {
	if err := p.Kill(); err != nil {
		return fmt.Errorf("%w; the command %s goes on: %w", cause, p.ID(), err)
	}
	_, _ = p.Wait() // takes the result out of the sandbox; nobody asks for it
	return fmt.Errorf("%w; the command was ended", cause)
}

// execCommandOf is the command that the flags describe.
func execCommandOf(cmd *cli.Command) (_ sandbox.Command, err error) {
	if err := refuseFlags(cmd, notForSandboxes, "is not for sandboxes"); err != nil {
		return sandbox.Command{}, err
	}
	if cmd.IsSet("no-new-privs") && !cmd.Bool("no-new-privs") {
		return sandbox.Command{}, errors.New("--no-new-privs=false is not for sandboxes: nothing in one gains privileges")
	}
	c := sandbox.Command{Args: cmd.Args().Tail(), Cwd: cmd.String("cwd"), Detached: cmd.Bool("detach"), Transaction: cmd.Bool("transaction")}
	if len(c.Args) == 0 {
		return c, errors.New("no command; write it after the name, as in: exec box python3 x.py")
	}
	if c.Args[0] == "" {
		return c, relay.ErrEmptyCommand
	}
	if err := checkDetached(cmd); err != nil {
		return c, err
	}
	if c.OutputLimit, err = logSize(cmd); err != nil {
		return c, err
	}
	var flags spec.Config
	if err := configflags.Apply(cmd, append(configflags.OfCommand(), execEnvironment()...), &flags); err != nil {
		return c, err
	}
	if _, err := flags.Complete(); err != nil {
		return c, configflags.InFlags(cmd, err)
	}
	c.Limits, c.Env, c.User, c.Timeout = flags.Limits, flags.Env, flags.User, time.Duration(flags.Timeout)
	c.Grace = time.Duration(flags.Grace)
	for _, gid := range cmd.Int64Slice("additional-gids") {
		if gid < 0 || gid >= math.MaxUint32 {
			return c, fmt.Errorf("--additional-gids: %d is no valid id", gid)
		}
		c.Groups = append(c.Groups, uint32(gid))
	}
	return c, nil
}

// logSize is the size that --log-size asks for; 0: the default.
func logSize(cmd *cli.Command) (int64, error) {
	if cmd.IsSet("log-size") && !cmd.Bool("detach") {
		return 0, errors.New("--log-size is for --detach: the output of other commands is not kept")
	}
	return commandline.SizeOf(cmd, "log-size", "8m")
}

// execEnvironment are flags of exec that are do's, too.
func execEnvironment() []configflags.Flag {
	return slices.DeleteFunc(configflags.All(), func(f configflags.Flag) bool {
		return !slices.Contains([]string{"env", "user", "timeout", "grace"}, f.Name())
	})
}

// checkDetached refuses flags that need a caller until the end of the command.
func checkDetached(cmd *cli.Command) error {
	if !cmd.Bool("detach") {
		return nil
	}
	return refuseFlags(cmd, map[string]string{
		"transaction": "no caller waits for its writes to join",
		"interactive": "it has no caller to give it input",
		"tty":         "it has no caller to read from its terminal",
		"json":        "attach --json prints its Result when it has ended",
		"timeout":     "it has no caller to end it in time",
	}, "and --detach do not go together")
}

// refuseFlags is the error of a flag that is given and has a reason against it.
func refuseFlags(cmd *cli.Command, reasons map[string]string, problem string) error {
	for name, why := range reasons {
		if cmd.IsSet(name) {
			return fmt.Errorf("--%s %s: %s", name, problem, why)
		}
	}
	return nil
}
