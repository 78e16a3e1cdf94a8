package apply

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
)

// A Report is the result of a Commit.
type Report struct {
	// Applied are the paths of the changes that were applied.
	Applied []string
	// Stamps are of these paths as they are now, for the next plan. A path of
	// Options.Stamps that is gone has a zero stamp.
	Stamps map[string]layer.Stamp
}

// report completes the stamps: a rename has changed the ctime of each moved entry.
func (p *Plan) report(ctx context.Context, r *Report) {
	stamp := stamper{p, r.Stamps}
	awaitTick(ctx)
	removed := map[string]bool{}
	for i := range p.ops {
		o := &p.ops[i]
		if o.Kind != opCreate && o.Kind != opAttributes {
			removed[o.Path] = true
		}
	}
	for i := range p.items {
		it := &p.items[i]
		switch {
		case it.copied != nil:
		case it.first >= 0: // a rename of one name changes the time of the file, which the others have too
			first := &p.items[it.first]
			stamp.noteMoved(first.path(), first.mtime(), first.source)
			stamp.noteMoved(it.path(), first.mtime(), first.source)
		case !it.inside:
			stamp.noteMoved(it.path(), it.mtime(), it.source)
		}
	}
	stamp.touched()
	for _, k := range p.kin {
		if _, again := r.Stamps[k.path]; !again {
			stamp.noteMoved(k.path, k.entry.MTime, 0)
		}
	}
	for path := range p.o.Stamps {
		if _, again := r.Stamps[path]; !again && withAny(path, removed) {
			r.Stamps[path] = layer.Stamp{}
		}
	}
	skipped := map[string]bool{}
	for _, refusal := range p.refused {
		skipped[refusal.Path] = true
	}
	for i := range p.changes {
		c := &p.changes[i]
		if _, ok := r.Stamps[c.Path]; ok || !skipped[c.Path] {
			r.Applied = append(r.Applied, c.Path)
		}
	}
}

// A stamper notes the stamps of paths as the apply has left them.
type stamper struct {
	plan   *Plan
	stamps map[string]layer.Stamp
}

// noteMoved notes the stamp of an entry that was moved into the tree. It notes none if others
// have changed the entry since.
func (t stamper) noteMoved(path string, mtime, source int64) {
	delete(t.stamps, path)
	e, err := t.plan.tree.stat(path)
	if err == nil && (e.dir() || e.MTime == mtime) {
		t.stamps[path] = stampOf(e, source)
	}
}

// stampOf is the stamp of an entry, of which source identifies the content, if it is not 0.
func stampOf(e entry, source int64) layer.Stamp {
	s := layer.Stamp{CTime: e.ctime, Source: source}
	if e.dir() {
		s.Inode = e.Ino
	}
	return s
}

// touched stamps the directories in which a step was done and that were there before. It
// leaves out those in which others have done something before.
func (t stamper) touched() {
	for path, seen := range t.plan.parents {
		if _, made := t.stamps[path]; made || !seen {
			continue
		}
		e, err := t.plan.tree.stat(path)
		if err != nil {
			continue
		}
		s := stampOf(e, 0)
		before, known := t.plan.o.Stamps[path]
		s.Touched = !known || before.Touched
		t.stamps[path] = s
	}
}

// withAny tells whether a path is one of some, or below one.
func withAny(path string, some map[string]bool) bool {
	for ; path != ""; path, _ = layer.Split(path) {
		if some[path] {
			return true
		}
	}
	return false
}

// awaitTick waits, some milliseconds at most, for the next tick of the clock of file
// times. A later change then has a later time than all changes before.
func awaitTick(ctx context.Context) {
	for begin := time.Now().UnixNano(); coarseTime() <= begin && ctx.Err() == nil; {
		time.Sleep(200 * time.Microsecond)
	}
}

// coarseTime is the clock of file times, in nanoseconds.
func coarseTime() int64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now) != nil {
		return time.Now().UnixNano()
	}
	return now.Nano()
}
