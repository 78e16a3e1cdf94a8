package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Conditions a caller decides on. The wording is what daemons look for.
var (
	ErrExist      = libcontainer.ErrExist
	ErrNotExist   = libcontainer.ErrNotExist
	ErrInvalidID  = libcontainer.ErrInvalidID
	ErrNotRunning = libcontainer.ErrNotRunning
)

// killPatience is how long Kill waits for a killed init to be gone. A process
// in an uninterruptible system call outlives SIGKILL for as long as that takes.
const killPatience = 10 * time.Second

// Options are the choices of a start that an OCI spec does not hold.
type Options struct {
	// Bundle is the absolute directory that relative paths of the spec start
	// from; it is recorded in the state. Empty means the working directory.
	Bundle string
	// SystemdCgroup asks systemd for the cgroup; cgroupsPath then has the form
	// "slice:prefix:name".
	SystemdCgroup bool
	// NoPivot uses chroot and a moved mount in place of pivot_root(2), which a
	// ramdisk root refuses. It is the weaker wall.
	NoPivot bool
	// NoNewKeyring keeps the caller's session keyring.
	NoNewKeyring bool
	// RootlessCgroups goes on where cgroups may not be written; see
	// [RootlessCgroups].
	RootlessCgroups bool
}

// Container is one container of a state root. Its methods may be called from
// several goroutines; libcontainer serialises them. It holds no descriptors
// and needs no Close.
type Container struct {
	lc   *libcontainer.Container
	root string
}

// Create makes the state directory root/id for a container that runs spec.
// Nothing of it exists in the kernel yet. The caller destroys the container
// when a later step fails.
//
// Errors: [ErrInvalidID], [ErrExist], or what is wrong with the spec.
func Create(root, id string, spec *specs.Spec, opts Options) (*Container, error) {
	config, err := newConfig(&specconv.CreateOpts{
		CgroupName:       id,
		UseSystemdCgroup: opts.SystemdCgroup,
		NoPivotRoot:      opts.NoPivot,
		NoNewKeyring:     opts.NoNewKeyring,
		Spec:             anchored(spec, opts.Bundle),
		RootlessEUID:     os.Geteuid() != 0,
		RootlessCgroups:  opts.RootlessCgroups,
	})
	if err != nil {
		return nil, err
	}
	if opts.Bundle != "" {
		config.Labels = append(config.Labels, "bundle="+opts.Bundle) // the last one counts
	}
	lc, err := libcontainer.Create(root, id, config)
	if err != nil {
		return nil, err
	}
	c := &Container{lc: lc, root: root}
	if err := c.recordCgroups(); err != nil {
		return nil, errors.Join(err, lc.Destroy())
	}
	return c, nil
}

// anchored returns spec with a relative root path made absolute from bundle.
// libcontainer would take the process's working directory, which a program
// with several threads at work does not have to give away.
func anchored(spec *specs.Spec, bundle string) *specs.Spec {
	if bundle == "" {
		return spec
	}
	s := *spec
	if s.Root != nil && !filepath.IsAbs(s.Root.Path) {
		root := *s.Root
		root.Path = filepath.Join(bundle, root.Path)
		s.Root = &root
	}
	s.Mounts = append([]specs.Mount(nil), s.Mounts...)
	for i, m := range s.Mounts {
		if isBind(m) && !filepath.IsAbs(m.Source) {
			s.Mounts[i].Source = filepath.Join(bundle, m.Source)
		}
	}
	return &s
}

func isBind(m specs.Mount) bool {
	for _, o := range m.Options {
		if o == "bind" || o == "rbind" {
			return true
		}
	}
	return false
}

// Load opens the container id of the state root. Errors: [ErrInvalidID],
// [ErrNotExist].
func Load(root, id string) (*Container, error) {
	if err := settleFreezer(root, id); err != nil {
		return nil, fmt.Errorf("container %s: %w", id, err)
	}
	lc, err := libcontainer.Load(root, id)
	if err != nil {
		return nil, err
	}
	return &Container{lc: lc, root: root}, nil
}

// IDs lists the containers below root, in order. Directories whose name begins
// with "@" are the runtime's own. A root that does not exist is an error that
// matches [os.ErrNotExist].
func IDs(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), "@") {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// ID is the container's id.
func (c *Container) ID() string { return c.lc.ID() }

// Signal sends s to the container's init. SIGKILL reaches every process of the
// container also when it has no pid namespace of its own. [ErrNotRunning] says
// that there is no init any more.
func (c *Container) Signal(s unix.Signal) error { return c.lc.Signal(s) }

// Kill ends every process of the container and returns when its init is gone,
// which for a container with its own pid namespace means all of it. A container
// that is not running is no error.
func (c *Container) Kill() error {
	pidfd, err := c.PidFD()
	if errors.Is(err, ErrNotRunning) {
		// Without a pid namespace processes may have outlived their init; an
		// error of this one tells nothing that Destroy will not tell.
		_ = c.lc.Signal(unix.SIGKILL)
		return nil
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if err := c.lc.Signal(unix.SIGKILL); err != nil && !errors.Is(err, ErrNotRunning) {
		return err
	}
	return awaitExit(pidfd, killPatience)
}

// Destroy removes the container's cgroup and state directory and runs its
// poststop hooks. It refuses while init runs. Once destroyed it may be
// destroyed again.
func (c *Container) Destroy() error { return c.lc.Destroy() }

// PidFD opens a pidfd on the container's init. The caller closes it.
// [ErrNotRunning] says that there is no init any more.
func (c *Container) PidFD() (*os.File, error) {
	state, err := c.lc.State()
	if err != nil {
		return nil, err
	}
	pid := state.InitProcessPid
	if pid <= 0 {
		return nil, ErrNotRunning
	}
	pidfd, err := openPidFD(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, err
	}
	// Only now is the number bound to a process: if that is still the recorded
	// one, the descriptor is it.
	status, err := c.lc.Status()
	if err == nil && status == libcontainer.Stopped {
		err = ErrNotRunning
	}
	if err != nil {
		pidfd.Close()
		return nil, err
	}
	return pidfd, nil
}

func openPidFD(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd_open %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// awaitExit returns when the process behind pidfd has ended: a pidfd becomes
// readable then (pidfd_open(2), Linux 5.3).
func awaitExit(pidfd *os.File, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return errors.New("container init still running")
		}
		fds := []unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll pidfd: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
}
