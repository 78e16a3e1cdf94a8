package container

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	selinux "github.com/opencontainers/selinux/go-selinux"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// Process is a process to start in a container. The files stay the caller's,
// to be closed once Start, Run or Join has returned.
type Process struct {
	// Spec has the program and its rights.
	Spec *specs.Process
	// Stdin, Stdout and Stderr are the process's first three descriptors; nil
	// is /dev/null. libcontainer gives their inodes to the process's user, so
	// they must not be files whose owner matters.
	Stdin, Stdout, Stderr *os.File
	// ExtraFiles are its descriptors from 3 on.
	ExtraFiles []*os.File
	// ConsoleSocket receives the master of a new pseudo-terminal (SCM_RIGHTS);
	// the process's stdio is then that terminal and the three above are nil.
	ConsoleSocket *os.File
	// PidfdSocket receives a pidfd of the process (SCM_RIGHTS).
	PidfdSocket *os.File
	// Ready, unless nil, is called by Run before it releases the init. Run fails if Ready fails.
	Ready func() error
	// SubCgroups maps a controller (cgroup v1) or "" (all, and v2) to a cgroup
	// below the container's that a joining process enters.
	SubCgroups map[string]string
}

// Child is a started process. It is a child of the caller, which reaps it with Wait or has
// it reaped otherwise.
type Child struct {
	lp  *libcontainer.Process
	pid int
}

// Start sets the container up as far as its init, which waits to be released
// by Exec. On an error nothing of the process is left; the caller destroys the
// container.
func (c *Container) Start(p Process) (*Child, error) {
	return c.launch(p, true, c.lc.Start)
}

// Run is Start and Exec in one.
func (c *Container) Run(p Process) (*Child, error) {
	child, err := c.launch(p, true, func(lp *libcontainer.Process) error {
		err := c.lc.Start(lp)
		if err == nil && p.Ready != nil {
			err = p.Ready()
		}
		if err == nil {
			err = c.lc.Exec()
		}
		return err
	})
	return child, unlessDead(err)
}

// Join starts a further process inside the running container's namespaces.
func (c *Container) Join(p Process) (*Child, error) {
	child, err := c.launch(p, false, c.lc.Run)
	if err != nil {
		err = c.whyNotJoined(err)
	}
	return child, err
}

// Exec releases an init that Start has set up, in this program or in an earlier one: it
// executes the container's command. The caller has the lock, and has checked that the
// container was not started yet.
func (c *Container) Exec() error { return unlessDead(c.lc.Exec()) }

// unlessDead words the error of an init that is silent when it is released: with
// the lock held nobody else can have released it, and libcontainer is wrong.
func unlessDead(err error) error {
	if err != nil && err.Error() == "cannot start an already running container" {
		return errors.New("container process is already dead")
	}
	return err
}

func (c *Container) launch(p Process, init bool, start func(*libcontainer.Process) error) (*Child, error) {
	lp, err := newProcess(p)
	if err != nil {
		return nil, err
	}
	lp.Init = init
	if killsThreads(c.lc.Config().Seccomp) {
		lp.LogLevel = watched(lp.LogLevel)
	}
	if init {
		defer c.unlock()
	}
	if err := start(lp); err != nil {
		// A hook that failed after the start, or a fifo that could not be
		// opened, leaves a process that must not survive its error.
		if _, perr := lp.Pid(); perr == nil {
			_ = lp.Signal(unix.SIGKILL)
			_, _ = lp.Wait()
		}
		return nil, err
	}
	pid, err := lp.Pid()
	if err != nil {
		return nil, err
	}
	if init {
		if start, err := process.Started(pid); err == nil { // an init that has ended already needs no note
			c.started.Store(&initProcess{pid, start})
		}
	}
	return &Child{lp: lp, pid: pid}, nil
}

// Pid is the process's number in the caller's pid namespace.
func (ch *Child) Pid() int { return ch.pid }

// PidFD opens a pidfd on the process, which must not have been reaped. The
// caller closes it.
func (ch *Child) PidFD() (*os.File, error) { return openPidFD(ch.pid) }

// Signal sends s to the process.
func (ch *Child) Signal(s unix.Signal) error { return ch.lp.Signal(s) }

// Abort kills the process and reaps it.
func (ch *Child) Abort() {
	_ = ch.lp.Signal(unix.SIGKILL)
	_, _ = ch.lp.Wait()
}

func newProcess(p Process) (*libcontainer.Process, error) {
	s := p.Spec
	if s == nil {
		return nil, errors.New("process property must not be empty")
	}
	if s.User.UID == math.MaxUint32 || s.User.GID == math.MaxUint32 {
		// (uid_t)-1 means "leave as it is" to setresuid(2): root would stay.
		return nil, fmt.Errorf("invalid user %d:%d", s.User.UID, s.User.GID)
	}
	if s.SelinuxLabel != "" && !selinux.GetEnabled() {
		return nil, errors.New("selinux label is specified in config, but selinux is disabled or not supported")
	}
	lp := &libcontainer.Process{
		Args:            s.Args,
		Env:             s.Env,
		UID:             int(s.User.UID),
		GID:             int(s.User.GID),
		Cwd:             s.Cwd,
		Label:           s.SelinuxLabel,
		AppArmorProfile: s.ApparmorProfile,
		NoNewPrivileges: &s.NoNewPrivileges,
		Scheduler:       s.Scheduler,
		IOPriority:      s.IOPriority,
		ExtraFiles:      p.ExtraFiles,
		ConsoleSocket:   p.ConsoleSocket,
		PidfdSocket:     p.PidfdSocket,
		SubCgroupPaths:  p.SubCgroups,
		LogLevel:        strconv.Itoa(int(logrus.GetLevel())),
	}
	setStdio(lp, p)
	if s.ConsoleSize != nil {
		lp.ConsoleWidth = uint16(s.ConsoleSize.Width)
		lp.ConsoleHeight = uint16(s.ConsoleSize.Height)
	}
	if s.Capabilities != nil {
		lp.Capabilities = &configs.Capabilities{
			Bounding:    s.Capabilities.Bounding,
			Effective:   s.Capabilities.Effective,
			Inheritable: s.Capabilities.Inheritable,
			Permitted:   s.Capabilities.Permitted,
			Ambient:     s.Capabilities.Ambient,
		}
	}
	for _, g := range s.User.AdditionalGids {
		lp.AdditionalGroups = append(lp.AdditionalGroups, int(g))
	}
	var err error
	if lp.Rlimits, err = rlimits(s.Rlimits); err != nil {
		return nil, err
	}
	if lp.CPUAffinity, err = configs.ConvertCPUAffinity(s.ExecCPUAffinity); err != nil {
		return nil, err
	}
	return lp, nil
}

// setStdio leaves an absent file a nil interface, which a nil *os.File in one
// would not be.
func setStdio(lp *libcontainer.Process, p Process) {
	if p.Stdin != nil {
		lp.Stdin = p.Stdin
	}
	if p.Stdout != nil {
		lp.Stdout = p.Stdout
	}
	if p.Stderr != nil {
		lp.Stderr = p.Stderr
	}
}

func rlimits(list []specs.POSIXRlimit) ([]configs.Rlimit, error) {
	var out []configs.Rlimit
	numbers := rlimitNumbers()
	for _, l := range list {
		number, ok := numbers[l.Type]
		if !ok {
			return nil, fmt.Errorf("wrong rlimit value: %s", l.Type)
		}
		out = append(out, configs.Rlimit{Type: number, Hard: l.Hard, Soft: l.Soft})
	}
	return out, nil
}

// rlimitNumbers are the numbers of the names of runtime-spec v1.3.0 config.md "POSIX
// process", which are those of getrlimit(2).
func rlimitNumbers() map[string]int {
	return map[string]int{
		"RLIMIT_AS":         unix.RLIMIT_AS,
		"RLIMIT_CORE":       unix.RLIMIT_CORE,
		"RLIMIT_CPU":        unix.RLIMIT_CPU,
		"RLIMIT_DATA":       unix.RLIMIT_DATA,
		"RLIMIT_FSIZE":      unix.RLIMIT_FSIZE,
		"RLIMIT_LOCKS":      unix.RLIMIT_LOCKS,
		"RLIMIT_MEMLOCK":    unix.RLIMIT_MEMLOCK,
		"RLIMIT_MSGQUEUE":   unix.RLIMIT_MSGQUEUE,
		"RLIMIT_NICE":       unix.RLIMIT_NICE,
		"RLIMIT_NOFILE":     unix.RLIMIT_NOFILE,
		"RLIMIT_NPROC":      unix.RLIMIT_NPROC,
		"RLIMIT_RSS":        unix.RLIMIT_RSS,
		"RLIMIT_RTPRIO":     unix.RLIMIT_RTPRIO,
		"RLIMIT_RTTIME":     unix.RLIMIT_RTTIME,
		"RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
		"RLIMIT_STACK":      unix.RLIMIT_STACK,
	}
}
