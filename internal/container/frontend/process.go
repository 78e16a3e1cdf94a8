package frontend

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// program is the name of this program in error messages.
const program = "sandbox-runtime"

// A Process is one process on its way into a container, for create, run, restore and exec.
type Process struct {
	log       *slog.Logger
	container *container.Container
	spec      *specs.Process

	init   bool // it is the container's first process; an error undoes the container
	Hold   bool // init waits for the start command
	Detach bool // leave the process to the caller once it is there
	Keep   bool // leave a container that has stopped, or whose start has failed
	Reap   bool // adopt the container's orphans

	Restore *container.CRIUOptions // start from a checkpoint; nil: from the command

	subCgroups map[string]string
	io         ProcessIO
	listen     []*os.File // sockets by systemd's protocol, for the process
	notify     *NotifyProxy
}

// A Config is the request of create, run and restore.
type Config struct {
	Root, ID string
	Bundle   string // "" is the current directory
	Log      *slog.Logger
	Options  container.Options
	ProcessIO
}

// ProcessIO names the sockets and files by which the caller learns of a process, and the
// descriptors that the process inherits.
type ProcessIO struct {
	ConsoleSocket string // receives the master of the console's pseudoterminal
	PidfdSocket   string // receives a pidfd of the process
	PidFile       string // absolute; gets the number of the process
	PreserveFDs   int    // descriptors beyond the standard three and $LISTEN_FDS
}

// New reads the bundle and creates its container. It changes the working directory
// to the bundle.
func New(c Config) (*Process, error) {
	go cgroups.Wake() // ends by itself
	s := &Process{log: c.Log, init: true, io: c.ProcessIO, listen: ListenFDs()}
	spec, err := EnterBundle(c.Bundle)
	if err != nil {
		return nil, err
	}
	s.spec = spec.Process
	s.notify = NewNotifyProxy(c.Root, c.ID)
	s.notify.addTo(spec)
	s.container, err = container.Create(c.Root, c.ID, spec, c.Options)
	return s, err
}

// Join is a session for another process of a container.
func Join(c *container.Container, log *slog.Logger, process *specs.Process, subCgroups map[string]string, o ProcessIO) *Process {
	return &Process{log: log, container: c, spec: process, subCgroups: subCgroups, io: o}
}

// Run starts the process and, unless detached, stays with it until it has
// ended. The status is that of the process, 0 if detached. After an error
// nothing is left of the process, nor of the container if it was its first and is
// not kept.
func (s *Process) Run() (status int, err error) {
	defer func() {
		if err != nil && s.init {
			s.destroyFailed()
		}
	}()
	if err := s.checkTerminal(); err != nil {
		return 0, err
	}
	signals := catchSignals()
	if s.Reap && !s.Detach {
		// Orphans among the descendants become children of this process (Linux 3.4).
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			s.log.Warn(fmt.Sprintf("become subreaper: %v", err))
		}
	}
	streams, err := s.newStreams()
	if err != nil {
		return 0, err
	}
	defer streams.finish()
	child, err := s.start(streams)
	if err != nil {
		return 0, err
	}
	announced, err := s.announce(child)
	if err != nil {
		child.Abort()
		return 0, err
	}
	defer announced()
	if s.Detach {
		return 0, nil
	}
	status, err = attend(child, signals, streams.resize, s.log)
	if err == nil && s.init && !s.Keep {
		// Before the streams are finished: processes that are left in a container without
		// a pid namespace may hold them open.
		s.destroy()
	}
	return status, err
}

// destroyFailed removes a container whose start has failed. One that is kept needs a state that other
// commands can load.
func (s *Process) destroyFailed() {
	if s.Keep && s.container.Recorded() {
		return
	}
	s.destroy()
}

// destroy warns of an error: the caller of the command wants to know how its process ended, or why the
// process did not start.
func (s *Process) destroy() {
	if err := s.container.Destroy(); err != nil {
		s.log.Warn(err.Error())
	}
}

// announce tells the service manager when the container says that it is ready.
// Detached it waits for that, since nobody stays to do so later; else wait does,
// or for the container's end.
func (s *Process) announce(child *container.Child) (wait func(), err error) {
	if s.notify == nil || s.Hold || s.Restore != nil {
		// The start command does it for one that is held; one that is restored
		// has said it before.
		return func() {}, nil
	}
	pidfd, err := child.PidFD()
	if err != nil {
		return nil, err
	}
	mainPid := child.Pid()
	if !s.Detach {
		mainPid = os.Getpid()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer pidfd.Close()
		if err := s.notify.Relay(pidfd, mainPid); err != nil {
			s.log.Warn(err.Error())
		}
	}()
	wait = func() { <-done }
	if s.Detach {
		wait()
	}
	return wait, nil
}

// start returns with the process running and all that was asked about it told.
func (s *Process) start(streams stdio) (*container.Child, error) {
	p := container.Process{Spec: s.spec, SubCgroups: s.subCgroups}
	var err error
	if p.ExtraFiles, err = inheritedFiles(s.listen, s.io.PreserveFDs); err != nil {
		return nil, err
	}
	if n := len(s.listen); n > 0 {
		s.spec.Env = append(s.spec.Env, "LISTEN_FDS="+strconv.Itoa(n), "LISTEN_PID=1")
	}
	if s.io.PidfdSocket != "" {
		if p.PidfdSocket, err = dialSocket(s.io.PidfdSocket); err != nil {
			return nil, fmt.Errorf("pidfd socket: %w", err)
		}
		defer p.PidfdSocket.Close()
	}
	streams.attach(&p)
	child, err := s.launch(p)
	if err != nil {
		return nil, err
	}
	err = streams.started()
	if err == nil && s.io.PidFile != "" {
		err = WritePidFile(s.io.PidFile, child.Pid())
	}
	if err != nil {
		child.Abort()
		return nil, err
	}
	return child, nil
}

func (s *Process) launch(p container.Process) (*container.Child, error) {
	if !s.init {
		return s.container.Join(p)
	}
	if err := s.notify.makeDir(); err != nil {
		return nil, err
	}
	if s.Hold {
		return s.container.Start(p)
	}
	if s.Restore != nil {
		return s.container.Restore(p, *s.Restore)
	}
	if err := s.notify.Listen(); err != nil {
		return nil, err
	}
	return s.container.Run(p)
}

func (s *Process) checkTerminal() error {
	handsOver := s.Detach && s.spec.Terminal
	if handsOver && s.io.ConsoleSocket == "" {
		return fmt.Errorf("cannot allocate tty if %s will detach without setting console socket", program)
	}
	if !handsOver && s.io.ConsoleSocket != "" {
		return fmt.Errorf("cannot use console socket if %s will not detach or allocate tty", program)
	}
	return nil
}
