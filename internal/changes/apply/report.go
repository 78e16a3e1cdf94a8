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
	awaitTick(ctx)
	removed := map[string]bool{}
	for i := range p.steps.ops {
		o := &p.steps.ops[i]
		if o.Kind != opCreate && o.Kind != opAttributes {
			removed[o.Path] = true
		}
	}
	for i := range p.steps.items {
		it := &p.steps.items[i]
		switch {
		case it.copied != nil:
		case it.first >= 0: // a rename of one name changes the time of the file, which the others have too
			first := &p.steps.items[it.first]
			p.tree.noteMoved(r.Stamps, first.path(), first.mtime(), first.source)
			p.tree.noteMoved(r.Stamps, it.path(), first.mtime(), first.source)
		case !it.inside:
			p.tree.noteMoved(r.Stamps, it.path(), it.mtime(), it.source)
		}
	}
	p.noteTouched(r.Stamps)
	for _, k := range p.kin {
		if _, again := r.Stamps[k.path]; !again {
			p.tree.noteMoved(r.Stamps, k.path, k.entry.MTime, 0)
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

// noteMoved notes the stamp of an entry that was moved into the tree. It notes none if others
// have changed the entry since.
func (t *tree) noteMoved(stamps map[string]layer.Stamp, path string, mtime, source int64) {
	delete(stamps, path)
	e, err := t.stat(path)
	if err == nil && (e.dir() || e.MTime == mtime) {
		stamps[path] = stampOf(e, source)
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

// noteTouched notes the stamps of the directories in which a step was done and that were there before. It
// leaves out those in which others have done something before.
func (p *Plan) noteTouched(stamps map[string]layer.Stamp) {
	for path, seen := range p.parents {
		if _, made := stamps[path]; made || !seen {
			continue
		}
		e, err := p.tree.stat(path)
		if err != nil {
			continue
		}
		s := stampOf(e, 0)
		before, known := p.o.Stamps[path]
		s.Touched = !known || before.Touched
		stamps[path] = s
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
