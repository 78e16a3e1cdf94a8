package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// An initProcess names the first process of a container, safe against a reused number.
type initProcess struct {
	pid int
	// start is as process.Started tells it, or as libcontainer does: with the offset of the time namespace in
	// which the container was started.
	start uint64
}

// isRunning is true if that cannot be told, for example because too many files are open.
func (i initProcess) isRunning() bool {
	start, err := process.Started(i.pid)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	if process.IsSameStart(start, i.start) {
		return true
	}
	fields, err := process.StatOf(i.pid)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return fields[22-3] == strconv.FormatUint(i.start, 10)
}

// initOf is the init of a container that was loaded from the state directory, or that was started here.
// The zero value is returned if there is none.
func (c *Container) initOf() initProcess {
	if i := c.started.Load(); i != nil {
		return *i
	}
	if !c.loaded { // State panics for an init that could not be executed (libcontainer v1.5.2)
		return initProcess{}
	}
	state, err := c.lc.State()
	if err != nil {
		return initProcess{}
	}
	return initProcess{state.InitProcessPid, state.InitProcessStartTime}
}

// initRuns says that a thread of the container's init runs. libcontainer looks only at the main thread: it
// takes a container for stopped whose other threads run (v1.5.2, container_linux.go:hasInit).
func (c *Container) initRuns() bool {
	init := c.initOf()
	return init.pid > 0 && init.isRunning()
}

// correct is the status of a container for which libcontainer has the status s.
func (c *Container) correct(s libcontainer.Status) libcontainer.Status {
	if s == libcontainer.Created && c.isReleased() {
		return libcontainer.Running
	}
	if s != libcontainer.Stopped || !c.initRuns() {
		return s
	}
	// The fifo is there until the init is released (v1.5.2, container_linux.go:refreshState).
	if _, err := os.Lstat(c.fifo()); err == nil {
		return libcontainer.Created
	}
	return libcontainer.Running
}

// signalThreads sends s to an init whose main thread has ended. Any of its threads takes the signal.
func (c *Container) signalThreads(s unix.Signal) error {
	pidfd, err := c.PidFD()
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if err := sendSignal(pidfd, s); err != nil {
		return err
	}
	if s == unix.SIGKILL {
		return thaw(c.lc)
	}
	return nil
}

func sendSignal(pidfd *os.File, s unix.Signal) error {
	err := unix.PidfdSendSignal(int(pidfd.Fd()), s, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return ErrNotRunning
	}
	return os.NewSyscallError("pidfd_send_signal", err)
}

// killWithoutMainThread kills the processes of the container that have lost their main thread. cgroup.kill
// signals main threads only (Linux 6.18, cgroup.c:__cgroup_kill): such processes outlive the kill.
func killWithoutMainThread(lc *libcontainer.Container) error {
	pids, _ := lc.Processes() // without a cgroup of its own libcontainer has killed the init only
	var errs []error
	for _, pid := range pids {
		if process.LacksMainThread(pid) {
			errs = append(errs, killMember(lc, pid))
		}
	}
	return errors.Join(errs...)
}

// killMember kills a process if it is the container's when it is held by a descriptor.
func killMember(lc *libcontainer.Container, pid int) error {
	pidfd, err := openPidFD(pid)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // ended; see PidFD
		return nil
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	pids, err := lc.Processes()
	if err != nil || !slices.Contains(pids, pid) {
		return err
	}
	if err := sendSignal(pidfd, unix.SIGKILL); !errors.Is(err, ErrNotRunning) {
		return err
	}
	return nil
}

// thaw lets the container's processes go on. A killed process in a frozen cgroup of v1 does not end before.
func thaw(lc *libcontainer.Container) error {
	state, err := lc.State()
	if err != nil {
		return err
	}
	f, err := openFreezer(state.CgroupPaths)
	if f == nil || err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Thaw()
}

// setPaused changes the limits of a container whose init has lost its main thread. libcontainer changes those
// of a paused container without a look at its init.
func (c *Container) setPaused(config configs.Config) error {
	if err := c.Pause(); err != nil {
		return err
	}
	lc, err := load(c.root, c.ID()) // libcontainer knows no way from stopped to paused
	if err == nil {
		err = lc.Set(config)
	}
	return errors.Join(err, thaw(c.lc))
}

// whyNotJoined is the reason why no process can join a container, or the error. procfs does not show the
// namespaces of an ended thread, and libcontainer joins those of the main thread.
func (c *Container) whyNotJoined(err error) error {
	if pid := c.initOf().pid; !c.initRuns() || !process.LacksMainThread(pid) || process.IsKilled(pid) || c.initEnds() {
		return err
	}
	return errors.New("the main thread of the container's first process has ended: no process can join its namespaces")
}

// initEnds says that the init ends within a second. The threads of a killed process end one after the other.
func (c *Container) initEnds() bool {
	pidfd, err := c.PidFD()
	if err != nil {
		return errors.Is(err, ErrNotRunning)
	}
	defer pidfd.Close()
	ended, err := process.AwaitExit(int(pidfd.Fd()), time.Second)
	return err == nil && ended
}

// endUnreleased prepares the end of a container. An init that was never released is killed, and one that
// runs is an error, as with libcontainer: it would remove the state of an init without its main thread.
func (c *Container) endUnreleased() error {
	if !c.initRuns() {
		return nil
	}
	status, err := c.status()
	if err != nil {
		return err
	}
	switch status {
	case libcontainer.Created:
		return c.Kill()
	case libcontainer.Paused:
		return fmt.Errorf("unable to destroy container: %w", libcontainer.ErrPaused)
	case libcontainer.Running:
		return fmt.Errorf("unable to destroy container: %w", libcontainer.ErrRunning)
	}
	return nil
}
