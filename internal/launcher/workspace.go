package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// SetWorkspace puts a directory of the host at /workspace of a sandbox that is up, in
// place of the private workspace or of an earlier one. A process with an open file in the
// private workspace, or with its working directory there, keeps that.
//
// Errors: *[launch.ConfigError], errors of rootfs about the directory, [launch.ErrBusy] if
// a process is in the directory that is to be replaced, and those of Pause.
func (s *Sandbox) SetWorkspace(ctx context.Context, dir string, from Sources) error {
	return s.alone(ctx, func() error {
		r, err := record.Read(s.session.Path())
		if err != nil {
			return err
		}
		if err := r.TakesWorkspace(); err != nil {
			return err
		}
		config := r.TreeConfig(s.launcher.Roots)
		config.Files, config.Peer = from.Files, from.peer()
		config.Workspace = dir
		tree, err := rootfs.OpenWorkspace(config, r.UIDMappings, r.GIDMappings)
		if err != nil {
			return explain(ctx, err)
		}
		defer tree.Close()
		next := r
		next.Config.Workspace = dir
		next.Limits.Disk = diskEnforcement(next.Config, from)
		if err := s.throttle(&next, from); err != nil {
			return err
		}
		if r.Attaching, err = record.NewAttaching(tree, next); err != nil {
			return err
		}
		s.session.Unwatch() // the watch was of another workspace
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

// endAttach has the record say which workspace the sandbox has, after one was being
// attached: that one, or the one before. The caller holds the sandbox.
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
	case private: // before Linux 6.5
		r.Config.Workspace = ""
	}
	r.Attaching = nil
	return s.session.Keep(r)
}

// changeWorkspace attaches a workspace in place of the one that was attached before,
// whatever the record says: a process may be killed while it attaches one. The private one
// stays below, because the kernel does not let go of mounts that are older than the
// sandbox.
func changeWorkspace(tree *os.File) error {
	private, err := isPrivateWorkspace()
	if err != nil {
		return err
	}
	if private {
		return mountns.Attach(tree, spec.WorkspacePath)
	}
	// It says whether one could be taken away, and does not do it the first time.
	err = letGo(func() error { return unix.Unmount(spec.WorkspacePath, unix.UMOUNT_NOFOLLOW|unix.MNT_EXPIRE) })
	switch {
	case errors.Is(err, unix.EBUSY):
		return inUse()
	case errors.Is(err, unix.EINVAL):
		return mountns.Attach(tree, spec.WorkspacePath)
	case err != nil && !errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("unmount %s in the sandbox: %w", spec.WorkspacePath, err)
	}
	// The sandbox has the one or the other, at any moment.
	err = mountns.AttachBeneath(tree, spec.WorkspacePath)
	old := errors.Is(err, unix.EINVAL)
	if err != nil && !old {
		return err
	}
	if err := letGo(func() error { return mountns.Detach(spec.WorkspacePath) }); errors.Is(err, unix.EBUSY) {
		return inUse()
	} else if err != nil {
		return err
	}
	if old { // Linux before 6.5
		return mountns.Attach(tree, spec.WorkspacePath)
	}
	return nil
}

// letGo does something to a mount that the kernel may find busy for a moment more,
// after the last command that was in it has ended.
func letGo(do func() error) error {
	for range 20 {
		if err := do(); !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return do()
}

func inUse() error {
	return fmt.Errorf("%w: something in the sandbox has its directory or open files in /workspace: end it first", statedir.ErrHeld)
}

// isPrivateWorkspace says whether /workspace is the sandbox's own, which is on the store
// as the home is.
func isPrivateWorkspace() (bool, error) { return mountns.SameDevice(spec.WorkspacePath, spec.HomePath) }

// throttle has the limits of disk traffic hold for the disks of the record's
// configuration, which are others than before.
func (s *Sandbox) throttle(r *record.Record, from Sources) error {
	if !r.Config.Limits.Throttled() {
		return nil
	}
	var err error
	if r.Disks, err = disks(r.Config, from, s.launcher.Data); err != nil {
		return err
	}
	host, err := s.launcher.host()
	if err != nil {
		return err
	}
	c, err := s.session.Container()
	if err != nil {
		return err
	}
	return setLimits(c, host, *r)
}
