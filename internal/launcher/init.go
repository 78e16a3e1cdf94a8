package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// PID 1 of a sandbox is the agent: its descriptors, its command line and its cgroup.

// initFiles returns the first descriptors of PID 1 from 4 on: its end of the first connection,
// and its listening socket. Descriptor 3 is its program. The store, its top and a filter follow.
func (m *creation) initFiles() (files []*os.File, conn *agent.Conn, err error) {
	listener, err := agent.Listen(filepath.Join(m.launcher.Dir(m.id), jobs.SocketName))
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
func (m *creation) startInit(mounted rootfs.Mounted, profile *specs.LinuxSeccomp, files []*os.File) error {
	c := m.request.Config
	m.record.Limits = enforcement(c, m.from, m.held)
	var err error
	if m.record.Disks, err = limitedDisks(c, m.from, m.launcher.Data); err != nil {
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
		Limits:      m.record.Limits,
		SwapLimit:   m.held.Memory.Reason == "",
		UIDMappings: m.root.UIDMappings(),
		GIDMappings: m.root.GIDMappings(),
		Seccomp:     profile,
		Disks:       m.record.Disks,
	})
	box, err := container.Create(m.launcher.State, m.id, oci, container.Options{
		UserNamespace: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.users.Fd()),
	})
	if errors.Is(err, container.ErrExist) {
		return &fault.SandboxError{ID: m.id, Err: errContainer}
	}
	if err != nil {
		return err
	}
	child, err := box.Run(container.Process{Spec: oci.Process, ExtraFiles: files})
	if err != nil {
		return err
	}
	m.launcher.children.Adopt(child.Pid())
	if m.record.Init, err = process.Of(child.Pid()); err != nil {
		return fmt.Errorf("PID 1 of the sandbox: %w", err)
	}
	divided := m.group.Divide(child.Pid(), record.HostID(m.root.UIDMappings(), spec.AgentID))
	return errors.Join(divided, m.limitSockets(), m.group.Close())
}

// openGroup makes the sandbox's cgroup, before the sandbox's root is mounted: the sandbox sees
// its own limits in the group. The limits and PID 1 come later, by libcontainer.
func (m *creation) openGroup() (views []cgroups.View, err error) {
	if m.held, err = ensureParent(m.host); err != nil {
		return nil, err
	}
	m.names = m.launcher.NewNames(m.id)
	if err := m.names.Write(m.launcher.Dir(m.id)); err != nil {
		return nil, err
	}
	if m.group, err = m.host.Open(m.names.CgroupPath()); err != nil {
		return nil, err
	}
	return m.group.Views()
}

// limitSockets limits the buffers of sockets to the sandbox's limit of memory. On cgroup v1 the
// buffers are not part of this memory, and the two budgets add up.
func (m *creation) limitSockets() error {
	switch {
	case !m.held.Memory.Enforced:
		return nil
	case !m.held.Sockets.Enforced:
		note := "the limit of memory is partial: buffers of TCP and UDP sockets are not limited: " + m.held.Sockets.Reason
		if !slices.Contains(m.record.Notes, note) { // a blank can have the note
			m.record.Notes = append(m.record.Notes, note)
		}
		return nil
	}
	return m.group.LimitSockets(int64(m.request.Config.Limits.Memory))
}

// initCommand is the command line of PID 1.
func (m *creation) initCommand() []string {
	args := []string{"/proc/self/fd/3"}
	if m.filters {
		args = append(args, "filters")
	}
	if m.record.GroupIDs {
		args = append(args, "group-ids")
	}
	if m.request.Config.PID == spec.PIDHost {
		args = append(args, "shared")
	}
	return args
}
