package launcher

import (
	"context"
	"os"
	"path/filepath"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// A finisher finishes removals after the caller has its answer. On nil it finishes none.
type finisher struct {
	// waiting has a place for each removal that is not finished.
	waiting chan struct{}
	// finishing has a place for each removal that goes on.
	finishing chan struct{}
	failed    func(error)
}

// Bounds of the removals that are not finished, and of those that go on at a time. A removal above
// the first bound keeps its caller waiting, so a client cannot make sandboxes faster than they are
// removed. More than a few removals at a time are slower beside each other.
const (
	mostAside   = 32
	mostAtATime = 4
)

// FinishRemovalsAside lets removals of healthy sandboxes return as soon as no process of the sandbox
// runs and its id is gone. Cgroups, files and user ids are removed afterwards. A new sandbox
// with the id waits for that, and so does [Launcher.Close]. If it fails, failed is called, and
// prune removes the rest.
func (l *Launcher) FinishRemovalsAside(failed func(error)) {
	l.aside = &finisher{waiting: make(chan struct{}, mostAside), finishing: make(chan struct{}, mostAtATime), failed: failed}
}

// servesRequests says that this process goes on after the answer to a request.
func (l *Launcher) servesRequests() bool { return l.aside != nil }

// finishes ends the processes of a sandbox, takes its record, and leaves the rest for later. If it
// returns false, the caller must finish the removal.
func (a *finisher) finishes(ctx context.Context, x *removal) bool {
	if a == nil || x.parts.Record == nil {
		return false
	}
	select {
	case a.waiting <- struct{}{}:
	default:
		return false
	}
	held := x.holdMounts()
	if err := x.leave(); err != nil {
		descriptor.Close(held...)
		<-a.waiting
		return false
	}
	_ = x.launcher.parts.ReleaseImage(ctx, x.parts) // a removal of the image can follow at once; finish repeats it, and has the error
	x.launcher.tending.Go(func() {
		a.finishing <- struct{}{}
		descriptor.Close(held...)
		err := x.finish(ctx)
		if err == nil {
			err = x.state.Remove()
		} else {
			x.state.Release()
		}
		<-a.finishing
		<-a.waiting
		if err != nil {
			a.failed(err)
		}
	})
	return true
}

// holdMounts keeps the mounts of the sandbox, and the mount of its store, until the files are closed. Otherwise
// PID 1 ends only after the kernel has removed the mounts. The removal of the mounts takes most of this time.
//
// holdMounts keeps nothing of a sandbox with directories of the caller: the caller may remove the device of such a
// directory as soon as the sandbox has gone. The files of an image are the launcher's own.
func (x *removal) holdMounts() (files []*os.File) {
	r := x.parts.Record
	c := r.Config
	if c.Rootfs != "" || c.Workspace != "" || len(c.Binds) > 0 || len(c.Overlays) > 0 {
		return nil
	}
	mounts, _ := record.OpenMounts(r.Init) // after an error the end of PID 1 takes longer, or PID 1 has ended
	store, _ := record.TakeStore(r.Init)   // as above
	return []*os.File{mounts, store}
}

// leave ends all processes of a healthy sandbox, and takes its record: then no sandbox has the id.
func (x *removal) leave() error {
	if err := x.parts.End(); err != nil {
		return err
	}
	if err := x.endLevels(); err != nil {
		return err
	}
	if err := x.state.Sign(); err != nil {
		return err
	}
	return os.Remove(filepath.Join(x.state.Path, record.FileName))
}
