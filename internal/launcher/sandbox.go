package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// cleanupTime bounds the removal of one sandbox, which goes on when the
// caller's context is cancelled.
const cleanupTime = 30 * time.Second

// A Sandbox is up from Create to Close and runs one command in between.
//
// Create makes, in this order: the state directory, an id range, the root in a
// private mount namespace, the container with its cgroup and PID 1. Close
// removes them in the reverse order, and so does [Launcher.Prune] for a
// sandbox whose process died; both find everything by the id.
type Sandbox struct {
	launcher *Launcher
	id       string
	config   spec.Config
	state    *stateDir
	idBase   uint32
	root     *rootfs.Root
	// languages are the interpreters outside /usr.
	languages rootfs.Languages
	group     *cgroups.Group
	host      *cgroups.Host
	limits    spec.LimitReport
	init      *container.Child
	agent     *agent.Conn
}

// Caller is who asks for a sandbox.
type Caller struct {
	// Path and Home are of the caller's environment. The language
	// interpreters that Path leads to are shown in a sandbox that has the
	// host's own root.
	Path, Home string
}

// Create makes a sandbox. On an error nothing of it is left.
//
// Errors: a *[spec.FieldError] joined with others of its kind, a
// *[rootfs.ForbiddenError], [fs.ErrNotExist] for a host path that is not there,
// [kernel.ErrNotSupported] where the host lacks what every sandbox needs.
func (l *Launcher) Create(ctx context.Context, c spec.Config, caller Caller) (*Sandbox, error) {
	c, err := c.Complete()
	if err != nil {
		return nil, err
	}
	s, err := l.create(ctx, c, caller)
	if err != nil {
		return nil, explain(ctx, err)
	}
	return s, nil
}

// explain finds out whether a failure is the host's: what is missing then, and
// how to get it, says more than which system call noticed.
func explain(ctx context.Context, err error) error {
	var forbidden *rootfs.ForbiddenError
	if ctx.Err() != nil || errors.As(err, &forbidden) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if missing := kernel.CheckRequired(); missing != nil {
		return fmt.Errorf("%w (%w)", missing, err)
	}
	return err
}

func (l *Launcher) create(ctx context.Context, c spec.Config, caller Caller) (_ *Sandbox, err error) {
	filter, err := loadSeccomp(c.Seccomp)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{launcher: l, id: newID(), config: c}
	if s.host, err = cgroups.Probe(); err != nil {
		return nil, err
	}
	if s.state, err = makeState(l.sandboxes(), s.id); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.idBase, err = l.ids().claim(s.id); err != nil {
		return nil, fmt.Errorf("claim a range of user ids: %w", err)
	}
	if s.root, err = rootfs.Open(s.rootConfig(caller)); err != nil {
		return nil, err
	}
	if err := s.start(ctx, filter); err != nil {
		return nil, err
	}
	return s, nil
}

// rootConfig says what of the host the sandbox sees.
func (s *Sandbox) rootConfig(caller Caller) rootfs.Config {
	c := s.config
	r := rootfs.Config{
		Dir:         c.Rootfs,
		Workspace:   c.Workspace,
		Private:     []string{s.launcher.root, defaultRoot, stage},
		IDBase:      s.idBase,
		Hostname:    c.Hostname,
		User:        rootfs.User{UID: c.User.UID, GID: c.User.GID, Home: spec.HomePath},
		MountPoints: []string{"/tmp", "/run", spec.HomePath},
	}
	if c.Workspace == "" {
		r.MountPoints = append(r.MountPoints, spec.WorkspacePath)
	}
	for _, b := range c.Binds {
		r.Binds = append(r.Binds, rootfs.Bind{Source: b.Source, Target: b.Target, Writable: b.Writable})
	}
	if c.Rootfs == "" {
		s.languages = rootfs.FindLanguages(caller.Path, caller.Home, r.Binds)
		r.Prefixes = s.languages.Prefixes
	}
	return r
}

// start mounts the root and starts PID 1 in it.
func (s *Sandbox) start(ctx context.Context, filter *specs.LinuxSeccomp) error {
	binary, err := agent.Executable()
	if err != nil {
		return err
	}
	defer binary.Close()
	conn, guest, err := agent.New()
	if err != nil {
		return err
	}
	s.agent = conn
	defer guest.Close()
	container.PinCgroupfs()
	thread, err := startMountThread()
	if err != nil {
		return err
	}
	defer thread.stop()
	err = thread.do(func() error {
		mounted, err := mountRoot(s.root)
		if err != nil {
			return err
		}
		return s.startInit(mounted, filter, binary, guest)
	})
	if err != nil {
		return err
	}
	// It is PID 1's now. While there were a copy here, no end of PID 1 would be
	// noticed.
	guest.Close()
	if err := s.agent.Ready(ctx); err != nil {
		return err
	}
	return ctx.Err() // Ready does not ask where it need not wait
}

func mountRoot(root *rootfs.Root) (rootfs.Mounted, error) {
	if err := os.Mkdir(stage, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return rootfs.Mounted{}, err
	}
	return root.Mount(stage)
}

// startInit starts PID 1: the agent's program at descriptor 3, its end of the
// control socket at 4.
func (s *Sandbox) startInit(m rootfs.Mounted, filter *specs.LinuxSeccomp, binary, guest *os.File) error {
	held, err := s.host.EnsureParent(cgroupParent, nil)
	if err != nil {
		return err
	}
	s.limits = enforcement(s.config, held)
	disks, err := s.disks()
	if err != nil {
		return err
	}
	oci := spec.Build(s.config, spec.Host{
		Root:             m.Path,
		Binds:            m.Binds,
		WorkspaceMounted: s.config.Workspace != "",
		Init:             []string{"/proc/self/fd/3"},
		CgroupsPath:      s.launcher.cgroupOf(s.id),
		Limits:           s.limits,
		SwapLimit:        held.Memory.Reason == "",
		UIDMappings:      s.root.UIDMappings(),
		GIDMappings:      s.root.GIDMappings(),
		Seccomp:          filter,
		Disks:            disks,
	})
	c, err := container.Create(s.launcher.root, s.id, oci, container.Options{})
	if err != nil {
		return err
	}
	s.init, err = c.Run(container.Process{Spec: oci.Process, ExtraFiles: []*os.File{binary, guest}})
	if err != nil {
		return err
	}
	s.group, err = s.host.Open(s.launcher.cgroupOf(s.id))
	return err
}

// disks are the devices that the configuration's I/O limits apply to.
func (s *Sandbox) disks() ([]spec.Disk, error) {
	if s.config.Limits.IORead == 0 && s.config.Limits.IOWrite == 0 {
		return nil, nil
	}
	paths := []string{"/usr"}
	for _, path := range []string{s.config.Rootfs, s.config.Workspace} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	for _, b := range s.config.Binds {
		paths = append(paths, b.Source)
	}
	return disksOf(paths...)
}

// hostID is the host's number of an id inside.
func hostID(mappings []specs.LinuxIDMapping, inside uint32) int {
	for _, m := range mappings {
		if inside >= m.ContainerID && inside-m.ContainerID < m.Size {
			return int(m.HostID + inside - m.ContainerID)
		}
	}
	return -1
}

// ID is the sandbox's name.
func (s *Sandbox) ID() string { return s.id }

// kill ends every process of the sandbox and reaps PID 1. It may be called
// again.
func (s *Sandbox) kill() error {
	if s.init == nil {
		return nil
	}
	if s.group != nil {
		if err := s.group.LiftThrottles(); err != nil {
			return err
		}
	}
	// The pid namespace goes with its PID 1, whatever its processes do.
	if err := s.init.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill PID 1 of %s: %w", s.id, err)
	}
	if err := s.thaw(); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		_, _ = s.init.Wait() // how it ended is no news
		close(gone)
	}()
	select {
	case <-gone:
		s.init = nil
		return nil
	case <-time.After(cleanupTime):
		// In a system call that never ends, on a file system that does not
		// answer. The state stays for a later prune.
		return fmt.Errorf("sandbox %s: a process was killed and does not end", s.id)
	}
}

// thaw lets a sandbox that somebody has paused die: what the v1 freezer holds
// is not killed (cgroup-v1/freezer-subsystem.rst).
func (s *Sandbox) thaw() error {
	if s.group == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	err := s.group.Thaw(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV): // somebody removed the group
		return nil
	case errors.Is(err, errors.ErrUnsupported): // nobody can have paused it
		return nil
	}
	return err
}

// Close ends what runs in the sandbox and removes all of it. What it could not
// remove is left to [Launcher.Prune]. It may be called again; the error then is
// nil.
func (s *Sandbox) Close() error {
	if s.state == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	var errs []error
	if s.agent != nil {
		errs = append(errs, s.agent.Close())
	}
	errs = append(errs, s.kill())
	if s.root != nil {
		errs = append(errs, s.root.Close())
	}
	errs = append(errs, s.launcher.remove(ctx, s.host, s.id))
	state := s.state
	s.state = nil
	if err := errors.Join(errs...); err != nil {
		// The directory stays for a later prune to try again, and the ids with
		// it: something may still run under them.
		return errors.Join(fmt.Errorf("remove sandbox %s: %w", s.id, err), state.held.Close())
	}
	var released error
	if s.idBase != 0 {
		released = s.launcher.ids().release(s.idBase)
	}
	return errors.Join(released, state.remove())
}

// remove removes what the kernel and libcontainer know of a sandbox, of whom
// nothing or only a part may be left.
func (l *Launcher) remove(ctx context.Context, host *cgroups.Host, id string) error {
	group, err := host.Open(l.cgroupOf(id))
	if err != nil {
		return err
	}
	if err := errors.Join(group.LiftThrottles(), group.Kill(ctx)); err != nil {
		return err
	}
	c, err := container.Load(l.root, id)
	if err == nil {
		err = errors.Join(c.Kill(), c.Destroy())
	} else {
		err = container.RemoveRemains(ctx, l.root, id)
	}
	return errors.Join(err, group.Delete(ctx))
}

// Settings are the limits that the kernel holds for the sandbox.
func (s *Sandbox) Settings() (cgroups.Settings, error) { return s.group.Settings() }
