package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Start asks the agent to start a command. It does not wait until the agent has executed the
// program: [Process.Started] does this, and [Process.Wait] also returns a failure of the
// execution. But for a detached command, or a command with a terminal, Start itself waits. Any
// number of commands can run at once, each in a cgroup of its own.
//
// The files become the command's first three descriptors; nil stands for /dev/null. They must
// be pipes of os.Pipe. Start changes the owner of the pipes to the command's user, so that the
// command can open /dev/stdout again. The caller must close the files. A command with a
// terminal, or a detached command, takes no files.
//
// Errors: *[fault.ConfigError], [fault.ErrNotFound], [fault.ErrNotRunning],
// [fault.ErrPaused], [fault.ErrUnavailable], and the errors of Started if Start waits for the
// execution.
func (v *Session) Start(ctx context.Context, c spec.Command, files [3]*os.File) (*Process, error) {
	r := v.Current()
	config, err := c.In(r.Config)
	if err != nil {
		return nil, fault.Refusal(err)
	}
	request, err := NewRequest(r, config, c, files)
	if err != nil {
		return nil, err
	}
	return v.enter(func() (*Process, error) { return v.start(ctx, r, config, c, request) })
}

// enter calls begin after [Session.Enter]. If begin succeeds, [Process.leave] calls
// [Session.Leave].
func (v *Session) enter(begin func() (*Process, error)) (*Process, error) {
	v.Enter()
	p, err := begin()
	if err != nil {
		v.Leave()
		return nil, err
	}
	return p, nil
}

// NewRequest returns the request to PID 1 for a command. config is the sandbox's configuration
// with the settings of the command on top. NewRequest also gives the files to the command's user.
func NewRequest(r record.Record, config spec.Config, c spec.Command, files [3]*os.File) (agent.Command, error) {
	if err := handOver(r, *config.User, c, files); err != nil {
		return agent.Command{}, err
	}
	return agent.Command{
		Args:        c.Args,
		Env:         config.Environ(r.Path...),
		Dir:         config.Cwd,
		UID:         config.User.UID,
		GID:         config.User.GID,
		Groups:      slices.Concat(config.User.Groups, c.Groups, passwordGroups(config)),
		Rlimits:     commandLimits(config),
		OOMScoreAdj: commandOOMScore,
		TTY:         c.Terminal, PlainNewlines: c.PlainNewlines,
		Stdin: files[0], Stdout: files[1], Stderr: files[2],
	}, nil
}

// passwordGroups is the group of the host's /etc/shadow, for root in a sandbox that overlays "/".
// useradd(8), passwd(1) and the like replace the file, and give the new file this group. Without
// capabilities root must be a member for that. The files of the group belong to root, so root
// inside reads no more than before.
func passwordGroups(c spec.Config) []uint32 {
	var st unix.Stat_t
	if c.User.UID != 0 || !slices.Contains(c.Overlays, "/") || unix.Lstat("/etc/shadow", &st) != nil ||
		st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 || st.Gid == 0 || st.Gid >= spec.AgentID {
		return nil
	}
	return []uint32{st.Gid}
}

// handOver checks the files and gives them to the command's user.
func handOver(r record.Record, user spec.User, c spec.Command, files [3]*os.File) error {
	for i, f := range files {
		if f == nil {
			continue
		}
		if c.Terminal != nil || c.Detached {
			return &fault.ConfigError{Reason: fmt.Sprintf("descriptor %d: a command with a terminal, or a detached command, takes no files", i)}
		}
		if err := checkPipe(f); err != nil {
			return &fault.ConfigError{Reason: fmt.Sprintf("descriptor %d of a command: %v", i, err)}
		}
		uid, gid := record.HostID(r.UIDMappings, user.UID), record.HostID(r.GIDMappings, user.GID)
		if err := f.Chown(uid, gid); err != nil {
			return fmt.Errorf("give a pipe to the command's user: %w", err)
		}
	}
	return nil
}

// pipeMagic is the file system of pipes without a name (linux/magic.h,
// PIPEFS_MAGIC).
const pipeMagic = 0x50495045

// checkPipe refuses all files except pipes without a name. Through another kind of file the
// command could do more than read and write, for example type into a terminal. And the new owner
// would stay visible on the host.
func checkPipe(f *os.File) error {
	var fs unix.Statfs_t
	var st unix.Stat_t
	err := descriptor.Use(f, func(fd int) error { return errors.Join(unix.Fstatfs(fd, &fs), unix.Fstat(fd, &st)) })
	if err != nil {
		return err
	}
	if fs.Type != pipeMagic || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return errors.New("not a pipe; copy between the file and a pipe")
	}
	return nil
}

// commandOOMScore makes the kernel kill a command before PID 1 and before the host's own
// processes when memory runs out.
const commandOOMScore = 500

// start asks the agent to start the command in a leaf of its own.
func (v *Session) start(ctx context.Context, r record.Record, config spec.Config, c spec.Command, request agent.Command) (_ *Process, err error) {
	if v.Paused() {
		return nil, &fault.SandboxError{ID: v.ID, Err: fault.ErrPaused}
	}
	conn, err := v.Connect(ctx)
	if err != nil {
		return nil, err
	}
	leaf, err := v.Leaves.Take()
	if err != nil {
		return nil, v.Why(ctx, err)
	}
	p := &Process{
		Live: v, Conn: conn, Exec: leaf.Exec, Leaf: leaf.Leaf, under: leaf.under, Args: shortArgs(c.Args), limits: config.Limits, Config: r,
		StartedAt: time.Now(), Timeout: time.Duration(config.Timeout), before: v.trafficOf(ctx, r), call: callOf(request),
		farewell: farewell{grace: config.Grace.Time()},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.undo(), p.Kept.close())
		}
	}()
	if err := leaf.limit(c.Limits); err != nil {
		return nil, limitError(err)
	}
	if c.Detached {
		defer v.starting.Delete(p.Exec)
		if err := p.Detach(ctx, c, &request); err != nil {
			return nil, record.NotFound(v.ID, err) // if the directory is missing, the sandbox was removed
		}
	}
	prepare := func() { // takes about 0.15 ms for the first command of a sandbox
		v.host.refresh(r)
		p.baseline = baselineOf(r)
		p.files = v.Files.Begin(r, c)
	}
	if c.Detached || c.Transaction { // a detached command runs also if this process ends during the start
		prepare()
	} else {
		request.Meanwhile = prepare
	}
	if c.Transaction {
		if p.Transaction, err = v.Overlay.Begin(ctx, r); err != nil {
			return nil, v.Why(ctx, err)
		}
		request.Root, p.joining = p.Transaction.Root(), make(chan struct{})
	}
	dir, tasks := leaf.Join()
	request.Cgroup = agent.Cgroup{Dir: dir, Tasks: tasks}
	err = p.inTime(ctx, func(ctx context.Context) (err error) {
		p.Inside, err = conn.Begin(ctx, request)
		return err
	})
	if err != nil {
		return nil, p.notStarted(ctx, err)
	}
	// After Start a caller cannot give up a detached command, and it uses a terminal at once.
	if c.Detached || c.Terminal != nil {
		if err := p.inTime(ctx, p.Inside.Started); err != nil {
			return nil, errors.Join(p.notStarted(ctx, err), p.Inside.Abandon())
		}
	}
	if c.Detached {
		if err := p.Kept.reopen(); err != nil {
			return nil, errors.Join(err, p.Inside.Abandon())
		}
	}
	v.Register(p)
	v.makeAhead()
	return p, nil
}

// limitError describes a limit that this host cannot enforce for one command.
func limitError(err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("a limit of one command %w: %w", fault.ErrUnavailable, err)
	}
	return err
}

// Started waits until the agent has executed the command's program. A caller may call Wait
// without Started.
//
// Errors: *[fault.NotRunError], *[fault.ConfigError] for its directory,
// [fault.ErrNotFound], [fault.ErrNotRunning], [fault.ErrPaused],
// [fault.ErrUnavailable] if there is no room for another process.
func (p *Process) Started(ctx context.Context) error {
	err := p.Live.UnlessPaused(ctx, p.Inside.Started)
	if err == nil || ctx.Err() != nil {
		return err
	}
	err = p.notStarted(ctx, err)
	if p.Waiting.TryAcquire(1) { // if a Wait is under way, the Wait gets the error itself
		p.fail(err)
		p.Waiting.Release(1)
	}
	return err
}

// ErrLate ends the wait for a command that is not executed within its timeout. Its text follows
// the name of the sandbox in a [fault.SandboxError].
var ErrLate = errors.New("did not execute the command within its timeout; a process in the sandbox may delay the start of commands")

// askTime is the least time that PID 1 has to take a request and to start a command. PID 1 needs much less. A command
// with a shorter timeout is started, too, and its Result tells the timeout.
const askTime = time.Second

// inTime calls ask by [Session.UnlessPaused], and ends it with the command's timeout, but not before askTime. The
// timer of the timeout starts only after the last such wait.
func (p *Process) inTime(ctx context.Context, ask func(context.Context) error) error {
	if p.Timeout == 0 {
		return p.Live.UnlessPaused(ctx, ask)
	}
	left := max(time.Until(p.StartedAt.Add(p.Timeout)), askTime)
	waiting, cancel := context.WithTimeoutCause(ctx, left, ErrLate)
	defer cancel()
	err := p.Live.UnlessPaused(waiting, ask)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(waiting), ErrLate) {
		return ErrLate
	}
	return err
}

// fail ends an exec whose command was not executed. The caller must hold p.Waiting.
func (p *Process) fail(err error) {
	if p.ended {
		return
	}
	if p.deadline != nil {
		p.deadline.Stop()
	}
	p.ended, p.err = true, errors.Join(err, p.undo())
	p.leave()
}

// notStarted returns the error for the caller after a failed start.
func (p *Process) notStarted(ctx context.Context, err error) error {
	v := p.Live
	var start *agent.StartError
	switch {
	case errors.Is(err, fault.ErrPaused):
		return err
	case record.AgentGone(err):
		v.disconnect(p.Conn)
		return v.Why(ctx, err)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &start):
		return p.refused(start)
	}
	return &fault.SandboxError{ID: v.ID, Err: err}
}

// filesName is the name under which the program that serves files appears in the lists of a
// sandbox's commands and processes.
const filesName = "sandbox-files"

// StartFiles starts the program that serves a sandbox's files. The program is part of the
// runtime, never a file of the sandbox. It runs in the sandbox under the limits of any command,
// but without a timeout, and without the environment of the sandbox's configuration.
func (v *Session) StartFiles(ctx context.Context, files [3]*os.File) (*Process, error) {
	program, err := v.all.FilesProgram()
	if err != nil {
		return nil, err
	}
	r := v.Current()
	config := r.Config
	config.Timeout = 0
	c := spec.Command{Args: []string{filesName}, NoFiles: true}
	request, err := NewRequest(r, config, c, files)
	if err != nil {
		return nil, err
	}
	request.Program = program
	request.Dir = "/"
	request.Env = []string{"GOMAXPROCS=2", "GOTRACEBACK=none"} // few threads, since they count against the sandbox's limit
	return v.enter(func() (*Process, error) { return v.start(ctx, r, config, c, request) })
}
