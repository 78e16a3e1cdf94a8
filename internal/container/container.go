package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// Conditions a caller decides on. Daemons look for these words.
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
	// UserNamespace is the path of a user namespace to join, which has the maps of
	// the spec. Empty: a new one, which belongs to this process's user. A path in
	// the spec has libcontainer fork twice to read the maps.
	UserNamespace string
}

// Container is one container of a state root. Its methods may be called from
// several goroutines; libcontainer serialises them. Between Create and the end
// of Start or Run, or else Destroy, it is locked, which takes a descriptor; it
// has no other and needs no Close.
type Container struct {
	lc       *libcontainer.Container
	root     string
	identity identity
	loaded   bool                        // from its state directory
	started  atomic.Pointer[initProcess] // nil unless the init was started here

	mu   sync.Mutex
	lock *os.File // nil while it is not held
}

// Create makes the state directory root/id for a container that runs spec, and locks it. The
// bundle is the working directory: relative paths of the spec start there.
// Nothing of it exists in the kernel yet. The caller must destroy the container when a
// later step fails.
//
// Errors: [ErrInvalidID], [ErrExist], [ErrBusy], or a mistake in the spec.
func Create(root, id string, spec *specs.Spec, opts Options) (*Container, error) {
	config, err := newConfig(&specconv.CreateOpts{
		CgroupName:       id,
		UseSystemdCgroup: opts.SystemdCgroup,
		NoPivotRoot:      opts.NoPivot,
		NoNewKeyring:     opts.NoNewKeyring,
		Spec:             spec,
		RootlessEUID:     os.Geteuid() != 0,
		RootlessCgroups:  opts.RootlessCgroups,
	})
	if err != nil {
		return nil, err
	}
	if opts.UserNamespace != "" {
		config.Namespaces.Add(configs.NEWUSER, opts.UserNamespace)
	}
	lc, err := libcontainer.Create(root, id, config)
	if err != nil && !errors.Is(err, ErrInvalidID) && statedir.Exists(filepath.Join(root, id)) {
		err = ErrExist // another process makes the container, or has made it since libcontainer looked
	}
	if err != nil {
		return nil, err
	}
	lock, err := lockNew(filepath.Join(root, id))
	if err != nil {
		return nil, err
	}
	c := &Container{lc: lc, root: root, identity: identityOf(lock), lock: lock}
	if err := c.recordCgroups(); err != nil {
		return nil, errors.Join(err, c.Destroy())
	}
	return c, nil
}

// lockNew locks a directory that was just made. Before it had the lock it looked like the
// rest of a killed create, and another process may have deleted it; if that process made
// it anew and got the lock first, it is not empty.
func lockNew(path string) (*os.File, error) {
	lock, err := lockState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("container %s was deleted while it was being created", filepath.Base(path))
	}
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	if err == nil && len(entries) > 0 {
		err = ErrExist
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// Lock keeps other processes from creating, starting or deleting the container
// until unlock, which may be called again. [ErrNotExist] says that it was
// deleted since it was loaded, [ErrBusy] that others are at work.
func (c *Container) Lock() (unlock func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lock != nil {
		return c.unlock, nil
	}
	lock, err := lockState(filepath.Join(c.root, c.ID()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	if identityOf(lock) != c.identity { // another one with this id
		lock.Close()
		return nil, ErrNotExist
	}
	c.lock = lock
	return c.unlock, nil
}

func (c *Container) unlock() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lock != nil {
		c.lock.Close()
		c.lock = nil
	}
}

// Load opens the container id of the state root. Errors: [ErrInvalidID],
// [ErrNotExist], [ErrDamaged].
func Load(root, id string) (*Container, error) {
	if err := settleFreezer(root, id); err != nil {
		return nil, fmt.Errorf("container %s: %w", id, err)
	}
	identity, missing := identify(filepath.Join(root, id))
	lc, err := load(root, id)
	if err == nil && missing != nil { // it has just been made
		err = ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return &Container{lc: lc, root: root, identity: identity, loaded: true}, nil
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
func (c *Container) Signal(s unix.Signal) error {
	err := c.lc.Signal(s)
	if errors.Is(err, ErrNotRunning) && c.initRuns() {
		return c.signalThreads(s)
	}
	if err == nil && s == unix.SIGKILL && !hasPidNamespace(c.lc) { // libcontainer has killed all its processes
		return killWithoutMainThread(c.lc)
	}
	if errors.Is(err, os.ErrProcessDone) { // since libcontainer looked
		return ErrNotRunning
	}
	return err
}

// Kill ends every process of the container and returns when they are gone. In a container
// without a pid namespace of its own, some may outlive its init for some time; Destroy
// tells of these. A container that is not running is no error.
func (c *Container) Kill() error {
	pidfd, err := c.PidFD()
	if errors.Is(err, ErrNotRunning) {
		c.killRest()
		return nil
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if err := c.Signal(unix.SIGKILL); err != nil && !errors.Is(err, ErrNotRunning) {
		return err
	}
	ended, err := process.AwaitExit(int(pidfd.Fd()), killPatience)
	if err != nil {
		return err
	}
	if !ended {
		return errors.New("container init still running")
	}
	c.killRest()
	return nil
}

// killRest ends processes that have outlived the init, as they may without a pid
// namespace. libcontainer does so when it destroys the container, and gives up removing
// its groups a second later.
func (c *Container) killRest() {
	if hasPidNamespace(c.lc) {
		return
	}
	for end := time.Now().Add(killPatience); ; time.Sleep(5 * time.Millisecond) {
		_ = c.Signal(unix.SIGKILL) // it tells nothing that Destroy will not tell
		pids, err := c.lc.Processes()
		if err != nil || len(pids) == 0 || time.Now().After(end) {
			return
		}
	}
}

// hasPidNamespace says that the container's processes end together with its init.
func hasPidNamespace(lc *libcontainer.Container) bool {
	config := lc.Config()
	return config.Namespaces.IsPrivate(configs.NEWPID)
}

// Destroy removes the container's cgroup and state directory and runs its
// poststop hooks. It refuses while init runs. One that is destroyed, be it by
// another process, may be destroyed again.
func (c *Container) Destroy() error {
	unlock, err := c.Lock()
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.endUnreleased(); err != nil {
		return err
	}
	if err := dropCriuRoot(filepath.Join(c.root, c.ID())); err != nil {
		return err
	}
	return c.lc.Destroy()
}

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
	// Before Linux 6.15 it is EINVAL if others are still in the process's group or
	// session, whose number is the pid (kernel/fork.c:pidfd_prepare).
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, err
	}
	// Only now is the number bound to a process: if that is still the recorded
	// one, the descriptor is it.
	status, err := c.status()
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

// conversion serialises newConfig: specconv v1.5.2 puts pointers to its own table of
// default devices into each configuration, and writes the container's root into those
// devices.
var conversion sync.Mutex

// newConfig turns a specification into libcontainer's configuration, which
// shares nothing with any other.
func newConfig(opts *specconv.CreateOpts) (*configs.Config, error) {
	conversion.Lock()
	defer conversion.Unlock()
	c, err := specconv.CreateLibcontainerConfig(opts)
	if err != nil {
		return nil, err
	}
	for i, shared := range c.Devices {
		own := *shared
		c.Devices[i] = &own
	}
	sortCalls(c.Seccomp)
	return c, nil
}
