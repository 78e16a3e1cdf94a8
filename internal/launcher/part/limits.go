package part

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/throttle"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// adoptLimits gives a blank the limits of the request, if it has others.
func (m *Making) adoptLimits(ctx context.Context, has spec.Limits) (err error) {
	if m.Request.Config.Limits == has {
		return nil
	}
	if err := m.Leaf.FitTo(ctx, m.Record); err != nil {
		return err
	}
	if m.Record.Disks, err = limitedDisks(m.Request.Config, m.From, m.parts.Data); err != nil {
		return err
	}
	if m.group, err = m.host.Open(m.names.CgroupPath()); err != nil {
		return err
	}
	c, err := container.LoadIn(m.parts.State, m.ID, m.group.Path())
	if err == nil {
		err = SetLimits(c, m.host, m.Record)
	}
	if err == nil {
		err = m.limitSockets()
	}
	return errors.Join(err, m.group.Close())
}

// SetLimits gives a container the limits of a record.
func SetLimits(c *container.Container, host *cgroups.Host, r record.Record) error {
	resources := spec.Resources(r.Config.Limits, spec.Host{
		Limits: r.Limits, Disks: r.Disks, SwapLimit: host.Limits.Memory.Reason == "",
	})
	resources.Devices = nil
	return c.Update(resources, container.IntelRdt{})
}

// limitSockets limits the buffers of sockets to the sandbox's limit of memory. On cgroup v1 the
// buffers are not part of this memory, and the two budgets add up.
func (m *Making) limitSockets() error {
	switch {
	case !m.held.Memory.Enforced:
		return nil
	case !m.held.Sockets.Enforced:
		note := "the limit of memory is partial: buffers of TCP and UDP sockets are not limited: " + m.held.Sockets.Reason
		if !slices.Contains(m.Record.Notes, note) { // a blank can have the note
			m.Record.Notes = append(m.Record.Notes, note)
		}
		return nil
	}
	return m.group.LimitSockets(int64(m.Request.Config.Limits.Memory))
}

// CheckOpenFiles refuses a requested limit of open files above this process's own hard limit: no
// command can have such a limit. The default is no error, and commands get a lower limit.
func CheckOpenFiles(c spec.Config) error {
	hard, known := jobs.InheritedLimits()["RLIMIT_NOFILE"]
	if asked := c.Limits.NoFile; known && asked > spec.DefaultLimits().NoFile && uint64(asked) > hard {
		return &spec.FieldError{Field: "limits.nofile", Problem: fmt.Sprintf(
			"%d is more than the %d of the launcher's own hard limit: raise that with ulimit -Hn, or with LimitNOFILE= of its unit", asked, hard)}
	}
	return nil
}

// enforcement is the part of a Result that names the enforced limits.
func enforcement(c spec.Config, from Sources, host cgroups.Limits) spec.LimitReport {
	return spec.LimitReport{
		Memory: enforced(host.Memory), CPU: enforced(host.CPU), Pids: enforced(host.Pids), IO: enforced(host.IO),
		Disk: DiskEnforcement(c, from),
	}
}

// DiskEnforcement says whether all writable places of the sandbox are bounded. A directory of the
// host is bounded if it has a quota.
func DiskEnforcement(c spec.Config, from Sources) spec.Enforcement {
	isUnbounded := func(b spec.Bind) bool { return b.Writable && !from.limited(b.Source) }
	if slices.ContainsFunc(record.HostBinds(c), isUnbounded) {
		return spec.Unavailable
	}
	return spec.Enforced
}

func enforced(l cgroups.Limit) spec.Enforcement {
	if l.Enforced {
		return spec.Enforced
	}
	return spec.Unavailable
}

// DisksOf returns the whole block devices below the given paths, each once. A path on a file
// system without a block device (tmpfs, overlayfs, network) adds none.
func DisksOf(from Sources, paths ...string) ([]spec.Disk, error) {
	var devices []uint64
	for _, path := range paths {
		st, err := from.stat(path)
		if err != nil {
			return nil, fmt.Errorf("stat %s: %w", path, err)
		}
		devices = append(devices, st.Dev)
	}
	return throttle.WholeDisks(devices)
}

// limitedDisks are the devices that a configuration's I/O limits apply to.
func limitedDisks(c spec.Config, from Sources, data string) ([]spec.Disk, error) {
	if !c.Limits.Throttled() {
		return nil, nil
	}
	paths := slices.DeleteFunc([]string{"/usr", c.Rootfs, c.Workspace}, func(path string) bool { return path == "" })
	if c.Storage == spec.StorageDisk {
		paths = append(paths, data)
	}
	paths = append(paths, c.Overlays...)
	for _, b := range c.Binds {
		paths = append(paths, b.Source)
	}
	return DisksOf(from, paths...)
}
