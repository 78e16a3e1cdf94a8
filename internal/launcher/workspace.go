package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/throttle"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// SetWorkspace puts a directory of the host at /workspace of a sandbox that is up. The directory
// replaces the private workspace or an earlier directory. A process with an open file or its
// working directory in the private workspace keeps this file or directory.
//
// Errors: *[fault.ConfigError], errors of rootfs about the directory, [fault.ErrBusy] if a
// process uses the earlier directory, or if the sandbox gets its first directory while a process
// can set the set-group-ID bit, and the errors of Pause.
func (s *Sandbox) SetWorkspace(ctx context.Context, dir string, from Sources) error {
	return s.withLock(ctx, func() error {
		r, err := record.Read(s.session.Path())
		if err != nil {
			return err
		}
		if err := r.TakesWorkspace(); err != nil {
			return err
		}
		config := r.TreeConfig(s.launcher.Roots)
		config.Files, config.Peer = from.Files, from.Peer()
		config.Workspace = dir
		tree, err := rootfs.OpenWorkspace(config, r.UIDMappings, r.GIDMappings)
		if err != nil {
			return explain(ctx, err)
		}
		defer tree.Close()
		if err := s.withholdGroupIDs(ctx, &r); err != nil {
			return err
		}
		next := r
		next.Config.Workspace = dir
		next.Limits.Disk = part.DiskEnforcement(next.Config, from)
		if err := s.throttle(&next, from); err != nil {
			return err
		}
		if r.Attaching, err = record.NewAttachment(tree, next); err != nil {
			return err
		}
		s.session.Unwatch() // it watches the old workspace
		if err := s.session.Keep(r); err != nil {
			return err
		}
		thread, err := mountns.Enter(r.Init)
		if err == nil {
			err = thread.Do(func() error { return changeWorkspace(tree) })
			thread.Stop()
		}
		if err != nil {
			return errors.Join(err, s.endAttach())
		}
		return s.session.Keep(next)
	})
}

// endAttach corrects the record after an interrupted change of the workspace. It looks in the
// sandbox whether the new workspace was attached, or the old one stayed. The caller must hold the
// sandbox.
func (s *Sandbox) endAttach() error {
	r, err := record.Read(s.session.Path())
	if err != nil || r.Attaching == nil {
		return err
	}
	thread, err := mountns.Enter(r.Init)
	if err != nil {
		return err
	}
	defer thread.Stop()
	var st unix.Stat_t
	var private bool
	err = thread.Do(func() error {
		if st, err = mountns.Stat(spec.WorkspacePath); err != nil {
			return err
		}
		private, err = isPrivateWorkspace()
		return err
	})
	if err != nil {
		return err
	}
	switch a := r.Attaching; {
	case st.Dev == a.Device && st.Ino == a.Inode:
		r.Config.Workspace, r.Disks, r.Limits.Disk = a.Dir, a.Disks, a.Limit
	case private: // before Linux 6.5 the old workspace goes before the new one comes
		r.Config.Workspace = ""
	}
	r.Attaching = nil
	return s.session.Keep(r)
}

// changeWorkspace attaches a workspace in place of the earlier workspace. It looks at the mounts
// and not at the record, because a process may have been killed during a change. The private
// workspace stays below, because the kernel does not unmount mounts that are older than the
// sandbox.
func changeWorkspace(tree *os.File) error {
	private, err := isPrivateWorkspace()
	if err != nil {
		return err
	}
	if private {
		return mountns.Attach(tree, spec.WorkspacePath)
	}
	// The first call with MNT_EXPIRE only says whether the workspace could be unmounted.
	err = retryBusy(func() error { return unix.Unmount(spec.WorkspacePath, unix.UMOUNT_NOFOLLOW|unix.MNT_EXPIRE) })
	switch {
	case errors.Is(err, statedir.ErrHeld):
		return err
	case errors.Is(err, unix.EINVAL):
		return mountns.Attach(tree, spec.WorkspacePath)
	case err != nil && !errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("unmount %s in the sandbox: %w", spec.WorkspacePath, err)
	}
	// With AttachBeneath the sandbox has the old or the new workspace at any moment.
	err = mountns.AttachBeneath(tree, spec.WorkspacePath)
	old := errors.Is(err, unix.EINVAL)
	if err != nil && !old {
		return err
	}
	if err := retryBusy(func() error { return mountns.Detach(spec.WorkspacePath) }); err != nil {
		return err
	}
	if old { // Linux before 6.5
		return mountns.Attach(tree, spec.WorkspacePath)
	}
	return nil
}

// retryBusy repeats a call that unmounts the workspace. The kernel may report the mount as busy for a moment
// after the end of the last command that used it. The error for a busy workspace is [statedir.ErrHeld].
func retryBusy(do func() error) error {
	for range 20 {
		if err := do(); !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("%w: a process in the sandbox has open files or its working directory in /workspace; end this process first", statedir.ErrHeld)
}

// isPrivateWorkspace says whether /workspace is the sandbox's own: it is then on the same store as
// the home.
func isPrivateWorkspace() (bool, error) { return mountns.SameDevice(spec.WorkspacePath, spec.HomePath) }

// throttle sets the limits of disk traffic for the disks of the record's new configuration.
func (s *Sandbox) throttle(r *record.Record, from Sources) error {
	if !r.Config.Limits.Throttled() {
		return nil
	}
	others := *r
	others.Config.Workspace = "" // the sandbox still has the old one
	all, err := throttle.Disks(others, s.launcher.Data)
	if err != nil {
		return err
	}
	own, err := part.DisksOf(from, r.Config.Workspace)
	if err != nil {
		return err
	}
	r.Disks = append(all, slices.DeleteFunc(own, func(d spec.Disk) bool { return slices.Contains(all, d) })...)
	host, err := s.launcher.host()
	if err != nil {
		return err
	}
	c, err := s.session.Container()
	if err != nil {
		return err
	}
	return part.SetLimits(c, host, *r)
}
