// Package userns has the ids of a sandbox on the host. It makes user namespaces that carry the maps of idmapped
// mounts, and belong to any user.
package userns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"golang.org/x/sys/unix"
)

// A Map has the translation of an idmapped mount: ids on disk to ids of the host. The
// containerID of an extent is the one on disk.
type Map struct {
	UIDs, GIDs []syscall.SysProcIDMap
}

// Namespaces are user namespaces, one for each Map. They are made in the background. One goroutine
// uses them. Close waits for all that were started.
type Namespaces struct {
	// Owner is the host's id of the user to whom they belong.
	Owner uint32
	made  map[string]*namespace
}

type namespace struct {
	done chan struct{}
	fd   int
	err  error
}

// Start begins to make the namespace of a map unless there is one.
func (n *Namespaces) Start(m Map) { n.start(m) }

func (n *Namespaces) start(m Map) *namespace {
	key := fmt.Sprint(m)
	if ns := n.made[key]; ns != nil {
		return ns
	}
	ns := &namespace{done: make(chan struct{}), fd: -1}
	if n.made == nil {
		n.made = map[string]*namespace{}
	}
	n.made[key] = ns
	go func() {
		defer close(ns.done)
		ns.fd, ns.err = New(m, n.Owner)
	}()
	return ns
}

// Descriptor waits for the namespace. The caller must not close the descriptor.
func (n *Namespaces) Descriptor(m Map) (int, error) {
	ns := n.start(m)
	<-ns.done
	return ns.fd, ns.err
}

// Close gives up all namespaces. What was made with them keeps them.
func (n *Namespaces) Close() {
	for _, ns := range n.made {
		<-ns.done
		descriptor.CloseFD(ns.fd)
	}
	n.made = nil
}

// File is a file of the namespace, which the caller must close.
func (n *Namespaces) File(m Map) (*os.File, error) {
	fd, err := n.Descriptor(m)
	if err != nil {
		return nil, err
	}
	copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("dup the user namespace: %w", err)
	}
	return os.NewFile(uintptr(copied), "user namespace"), nil
}

// New makes a user namespace of the given owner. Only the descriptor
// keeps the namespace alive.
//
// The kernel counts inotify instances, queued signals and the like once more for
// the owner, in the parent namespace (user_namespaces(7); kernel/ucount.c
// inc_ucount()): docs/adr/0013. The owner has all rights over the namespace, and
// the owner's thread opens it with them.
func New(m Map, owner uint32) (fd int, err error) {
	if int(owner) == os.Geteuid() {
		return beginUserNamespace(m)
	}
	fd = -1
	err = onThreadOf(owner, func() (err error) {
		fd, err = beginUserNamespace(m)
		return err
	})
	if err != nil {
		descriptor.CloseFD(fd)
		fd = -1
	}
	return fd, err
}

// beginUserNamespace makes a user namespace that belongs to the thread's user.
// A namespace needs a process to begin in: a child that ptrace(2) stops at its
// exec, before it runs a single instruction, and that is then killed and reaped.
// The child borrows this process's memory until then (vfork(2)), since to copy its
// page tables takes longer than all the rest; that is why the maps, for which it
// would have to wait, are written once it stands still.
func beginUserNamespace(m Map) (int, error) {
	runtime.LockOSThread() // the tracer is a thread, and so is the parent-death signal's parent
	defer runtime.UnlockOSThread()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"user-namespace"}, &syscall.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_VM | syscall.CLONE_VFORK,
			Ptrace:     true,
			Pdeathsig:  syscall.SIGKILL,
		},
	})
	if err != nil {
		return -1, fmt.Errorf("create a user namespace (see user.max_user_namespaces and kernel.yama.ptrace_scope below 3): %w", err)
	}
	defer end(pid)
	proc := "/proc/" + strconv.Itoa(pid)
	for file, extents := range map[string][]syscall.SysProcIDMap{"uid_map": m.UIDs, "gid_map": m.GIDs} {
		if err := os.WriteFile(proc+"/"+file, mapText(extents), 0); err != nil {
			return -1, fmt.Errorf("user namespace: %w", err)
		}
	}
	fd, err := unix.Open(proc+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open user namespace: %w", err)
	}
	return fd, nil
}

// mapText is a map as user_namespaces(7) wants it written, at once.
func mapText(extents []syscall.SysProcIDMap) []byte {
	var text []byte
	for _, e := range extents {
		text = fmt.Appendln(text, e.ContainerID, e.HostID, e.Size)
	}
	return text
}

// end kills and reaps a child that nobody has waited for: its pid is still its
// own.
func end(pid int) {
	_ = unix.Kill(pid, unix.SIGKILL) // reap does it again
	reap(pid)
}

// reap waits for the end of a traced child. It kills a child that has stopped: such a child ends in no other way.
// It must be called on the thread of the tracer.
func reap(pid int) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil && status.Stopped():
			_ = unix.PtraceCont(pid, int(unix.SIGKILL)) // it has been killed meanwhile
		default:
			return
		}
	}
}
