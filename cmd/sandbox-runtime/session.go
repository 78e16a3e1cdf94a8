package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// program is what error messages call this program.
const program = "sandbox-runtime"

// session is one process on its way into a container: what create, run,
// restore and exec have in common.
type session struct {
	log       *slog.Logger
	container *container.Container
	process   *specs.Process

	init   bool // it is the container's first process; an error undoes the container
	hold   bool // init waits for the start command
	detach bool // leave the process to the caller once it is there
	remove bool // delete the container once the process has ended
	reap   bool // adopt what the container orphans

	restore *container.CRIUOptions // start from a checkpoint; nil: from the command

	subCgroups    map[string]string
	consoleSocket string
	pidfdSocket   string
	pidFile       string
	inherited     inheritedFiles
	notify        *notifyProxy
}

// A startConfig is what create, run and restore ask for.
type startConfig struct {
	Root, ID string
	Bundle   string // "" is the current directory
	Log      *slog.Logger
	Options  container.Options
	ProcessIO
}

// ProcessIO is how the caller is told of a process, and what the process inherits.
type ProcessIO struct {
	ConsoleSocket string // receives the master of the console's pseudoterminal
	PidfdSocket   string // receives a pidfd of the process
	PidFile       string // absolute; gets the number of the process
	PreserveFDs   int    // descriptors beyond the standard three and $LISTEN_FDS
}

func (s *session) use(o ProcessIO) {
	s.consoleSocket, s.pidfdSocket, s.pidFile = o.ConsoleSocket, o.PidfdSocket, o.PidFile
	s.inherited.preserve = o.PreserveFDs
}

// newSession reads the bundle and creates its container. It changes the working directory
// to the bundle.
func newSession(c startConfig) (*session, error) {
	go cgroups.Wake() // ends by itself
	s := &session{log: c.Log, init: true}
	s.use(c.ProcessIO)
	s.inherited.listen = listenFDs()
	spec, err := enterBundle(c.Bundle)
	if err != nil {
		return nil, err
	}
	s.process = spec.Process
	s.notify = newNotifyProxy(c.Root, c.ID)
	s.notify.addTo(spec)
	s.container, err = container.Create(c.Root, c.ID, spec, c.Options)
	return s, err
}

// joinSession is a session for another process of a container.
func joinSession(c *container.Container, log *slog.Logger, process *specs.Process, subCgroups map[string]string, o ProcessIO) *session {
	s := &session{log: log, container: c, process: process, subCgroups: subCgroups}
	s.use(o)
	return s
}

// run starts the process and, unless detached, stays with it until it has
// ended. The status is that of the process, 0 if detached. After an error
// nothing is left of the process, nor of the container if it was its first.
func (s *session) run() (status int, err error) {
	defer func() {
		if err != nil && s.init {
			err = errors.Join(err, s.container.Destroy())
		}
	}()
	if err := s.checkTerminal(); err != nil {
		return 0, err
	}
	signals := catchSignals(s.detach)
	if s.reap && !s.detach {
		if err := becomeSubreaper(); err != nil {
			s.log.Warn(err.Error())
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
	if s.detach {
		return 0, nil
	}
	status, err = attend(child, signals, streams.resize, s.log)
	if err == nil && s.remove {
		// Before the streams are finished: what is left in a container without
		// a pid namespace may hold them open.
		if err := s.container.Destroy(); err != nil {
			s.log.Warn(err.Error())
		}
	}
	return status, err
}

// announce tells the service manager when the container says that it is ready.
// Detached it waits for that, since nobody stays to do so later; else wait does,
// or for the container's end.
func (s *session) announce(child *container.Child) (wait func(), err error) {
	if s.notify == nil || s.hold || s.restore != nil {
		// The start command does it for one that is held; one that is restored
		// has said it before.
		return func() {}, nil
	}
	pidfd, err := child.PidFD()
	if err != nil {
		return nil, err
	}
	mainPid := child.Pid()
	if !s.detach {
		mainPid = os.Getpid()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer pidfd.Close()
		if err := s.notify.relay(pidfd, mainPid); err != nil {
			s.log.Warn(err.Error())
		}
	}()
	wait = func() { <-done }
	if s.detach {
		wait()
	}
	return wait, nil
}

// start returns with the process running and all that was asked about it told.
func (s *session) start(streams streams) (*container.Child, error) {
	p := container.Process{Spec: s.process, SubCgroups: s.subCgroups}
	var err error
	if p.ExtraFiles, err = s.inherited.files(); err != nil {
		return nil, err
	}
	if n := len(s.inherited.listen); n > 0 {
		s.process.Env = append(s.process.Env, "LISTEN_FDS="+strconv.Itoa(n), "LISTEN_PID=1")
	}
	if s.pidfdSocket != "" {
		if p.PidfdSocket, err = dialSocket(s.pidfdSocket); err != nil {
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
	if err == nil && s.pidFile != "" {
		err = writePidFile(s.pidFile, child.Pid())
	}
	if err != nil {
		child.Abort()
		return nil, err
	}
	return child, nil
}

func (s *session) launch(p container.Process) (*container.Child, error) {
	if !s.init {
		return s.container.Join(p)
	}
	if err := s.notify.makeDir(); err != nil {
		return nil, err
	}
	if s.hold {
		return s.container.Start(p)
	}
	if s.restore != nil {
		return s.container.Restore(p, *s.restore)
	}
	if err := s.notify.listen(); err != nil {
		return nil, err
	}
	return s.container.Run(p)
}

func (s *session) checkTerminal() error {
	handsOver := s.detach && s.process.Terminal
	if handsOver && s.consoleSocket == "" {
		return fmt.Errorf("cannot allocate tty if %s will detach without setting console socket", program)
	}
	if !handsOver && s.consoleSocket != "" {
		return fmt.Errorf("cannot use console socket if %s will not detach or allocate tty", program)
	}
	return nil
}
