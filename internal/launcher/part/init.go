package part

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/fsmount"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// PID 1 of a sandbox is the agent: its descriptors, its command line and its cgroup.

// initFiles returns the first descriptors of PID 1 from 4 on: its end of the first connection,
// and its listening socket. Descriptor 3 is its program. The store, its top and a filter follow.
func (m *Making) initFiles() (files []*os.File, conn *agent.Conn, err error) {
	listener, err := agent.Listen(filepath.Join(m.parts.Dir(m.ID), jobs.SocketName))
	if err != nil {
		return nil, nil, err
	}
	conn, guest, err := agent.New()
	if err != nil {
		listener.Close()
		return nil, nil, err
	}
	return []*os.File{guest, listener}, conn, nil
}

// startInit starts PID 1.
func (m *Making) startInit(mounted rootfs.Mounted, files []*os.File) error {
	c := m.Request.Config
	m.Record.Limits = enforcement(c, m.From, m.held)
	var err error
	if m.Record.Disks, err = limitedDisks(c, m.From, m.parts.Data); err != nil {
		return err
	}
	network, err := m.network.path()
	if err != nil {
		return err
	}
	proc := ""
	if c.PID == spec.PIDHost {
		if proc, err = mountProc(); err != nil {
			return err
		}
	}
	oci := spec.Build(c, spec.Host{
		Proc:        proc,
		Network:     network,
		Root:        mounted.Path,
		Binds:       mounted.Binds,
		Devices:     mounted.Devices,
		Init:        m.initCommand(),
		CgroupsPath: m.names.CgroupPath(),
		Limits:      m.Record.Limits,
		SwapLimit:   m.held.Memory.Reason == "",
		UIDMappings: m.root.UIDMappings(),
		GIDMappings: m.root.GIDMappings(),
		Seccomp:     m.profile,
		Disks:       m.Record.Disks,
	})
	box, err := container.Create(m.parts.State, m.ID, oci, container.Options{
		UserNamespace: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.users.Fd()),
	})
	if errors.Is(err, container.ErrExist) {
		return &fault.SandboxError{ID: m.ID, Err: ErrContainer}
	}
	if err != nil {
		return err
	}
	child, err := box.Run(container.Process{Spec: oci.Process, ExtraFiles: files})
	if err != nil {
		return err
	}
	m.parts.Children.Adopt(child.Pid())
	if m.Record.Init, err = process.Of(child.Pid()); err != nil {
		return fmt.Errorf("PID 1 of the sandbox: %w", err)
	}
	divided := m.group.Divide(child.Pid(), record.HostID(m.root.UIDMappings(), spec.AgentID))
	return errors.Join(divided, m.limitSockets(), m.group.Close())
}

// start starts PID 1 in the sandbox's root.
func (m *Making) start(ctx context.Context) error {
	err := m.startRoot(ctx)
	m.Shown = m.root.TakeShown()
	if err != nil {
		return AboveTotal(m.host, m.Request.Config.Limits.CPUs, err)
	}
	m.Record.UIDMappings, m.Record.GIDMappings = m.root.UIDMappings(), m.root.GIDMappings()
	return nil
}

// startRoot mounts the root, starts PID 1 in it and waits until PID 1 serves. libcontainer loads the
// profile, or the agent loads the filter; only one of them is set.
func (m *Making) startRoot(ctx context.Context) error {
	files, conn, err := m.initFiles()
	if err != nil {
		return err
	}
	m.Conn = conn
	defer descriptor.Close(files...)
	program, err := m.parts.Program()
	if err != nil {
		return err
	}
	inherited := append([]*os.File{program}, files...)
	container.PinCgroupfs()
	thread, err := mountns.Start()
	if err != nil {
		return err
	}
	defer thread.Stop()
	err = thread.Do(func() error {
		m.Record.Trees = record.NewTrees(m.root.Trees(), m.Image.ID, record.Now())
		if err := os.MkdirAll(record.Stage, 0o700); err != nil {
			return err
		}
		mounted, err := m.root.Mount(record.Stage)
		if err != nil {
			return err
		}
		defer mounted.Store.Close()
		inherited = append(inherited, mounted.Store, m.top)
		if m.filter != nil {
			inherited = append(inherited, m.filter)
		}
		return m.startInit(mounted, inherited)
	})
	if err != nil {
		return err
	}
	// PID 1 has the files now. As long as the launcher held a copy of PID 1's end of the socket,
	// it would not notice the end of PID 1.
	descriptor.Close(files...)
	if err := m.Conn.Ready(ctx); err != nil {
		return err
	}
	if m.Record.Tied {
		if err := m.Conn.Tie(ctx); err != nil {
			return err
		}
	}
	if len(m.Record.Trees) > 0 {
		if err := record.AwaitTick(ctx, m.Record.Trees[0].Since); err != nil {
			return err
		}
	}
	return ctx.Err() // Ready does not check ctx if it does not wait
}

// initCommand is the command line of PID 1.
func (m *Making) initCommand() []string {
	args := []string{"/proc/self/fd/3"}
	if m.filters {
		args = append(args, "filters")
	}
	if m.Record.GroupIDs {
		args = append(args, "group-ids")
	}
	if m.Request.Config.PID == spec.PIDHost {
		args = append(args, "shared")
	}
	return args
}

// withholdGroupIDs prepares a claimed blank, in which no command has run, for writable files of
// the host.
func (m *Making) withholdGroupIDs(ctx context.Context) error {
	if !m.Record.GroupIDs || len(record.WritableBinds(m.Request.Config)) == 0 {
		return nil
	}
	if err := m.Conn.Withhold(ctx); err != nil {
		return err
	}
	m.Record.GroupIDs = false
	return nil
}

// A sandbox in the launcher's pid namespace has no process 1. Processes of the host and of other
// sandboxes are protected from it by their ids alone, and so is its agent.

// checkSharing refuses the launcher's pid namespace for a sandbox that has an id of a host's
// user: its processes could signal and read the processes of that user.
func (m *Making) checkSharing() error {
	if m.Request.Config.PID != spec.PIDHost {
		return nil
	}
	for _, e := range append(m.root.UIDMappings(), m.root.GIDMappings()...) {
		if e.HostID < m.Record.IDBase || e.HostID-m.Record.IDBase+e.Size > spec.IDs {
			return fault.Refusal(fmt.Errorf("pid namespace %q: a file system that cannot be idmapped makes user %d of the host a user of the sandbox; use a directory on another file system, or the pid namespace %q",
				spec.PIDHost, e.HostID, spec.PIDPrivate))
		}
	}
	return nil
}

// mountProc mounts a procfs of the launcher's pid namespace beside the root, and returns the
// path. The kernel lets nobody mount one in the sandbox's user namespace, which does not own the
// pid namespace (proc(5)). With hidepid=ptraceable, Linux 5.8, only the processes that the reader
// may trace are there. An older kernel refuses this word, and so changes no other procfs.
func mountProc() (path string, err error) {
	path = filepath.Join(record.Stage, "proc")
	defer func() {
		if err != nil {
			err = fmt.Errorf("procfs of the host for the sandbox: %w", err)
		}
	}()
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", err
	}
	procfs, err := fsmount.Open("proc", "proc", [2]string{"hidepid", "ptraceable"})
	if errors.Is(err, unix.EINVAL) {
		return "", fault.Unavailable(err)
	}
	if err != nil {
		return "", err
	}
	defer procfs.Close()
	mnt, err := procfs.MountWith(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return "", err
	}
	defer descriptor.CloseFD(mnt)
	return path, unix.MoveMount(mnt, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
