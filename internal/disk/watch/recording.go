package watch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// The bounds of a recording: its names, and its events, so many at once and so many for
// each second of its time.
const (
	maxNames  = 4096
	maxEvents = 100_000
	maxRate   = 5_000
)

// maxThreads bounds for how many threads the last event is remembered.
const maxThreads = 64

// A Recording keeps the changes of file systems until it ends.
type Recording struct {
	watches []*Watch
	since   time.Time

	// Of the groups' mu.
	began  time.Time // for the budget
	events int
	full   bool
	names  map[string]*name
	// last has the last act of a thread, if its next act depends on it.
	last map[int32]act
	// removed are the directories that are gone, by their handles.
	removed map[string]*name
	key     []byte
}

// An act is that a thread has moved something to a name of which nothing was known,
// and then that a file has lost a name, or gained one, if lost is its handle.
type act struct {
	to   *name
	lost string
}

// A name has the events of one entry of a directory.
type name struct {
	watch *Watch
	dir   string // its handle
	name  string
	// file is the handle of the last file with the name; first is that of the file that
	// had the name before all events.
	file, first string
	// was says that it was there before all, left that it went last, changed that
	// its attributes have, closed that it was open for writing.
	was, left, changed, closed bool
}

// Record begins a recording of watches of one group.
func Record(watches ...*Watch) (*Recording, error) {
	r := &Recording{watches: watches, names: map[string]*name{}, last: map[int32]act{}, removed: map[string]*name{}}
	g := watches[0].group
	// Earlier events are no part of the recording.
	if err := g.take(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var now unix.Timespec
	// Files are stamped by this clock, which only moves with the kernel's ticks.
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return nil, fmt.Errorf("clock_gettime: %w", err)
	}
	r.since, r.began = time.Unix(now.Unix()), time.Now()
	var errs []error
	for _, w := range watches {
		if !w.marked {
			errs = append(errs, w.markAllLocked(unix.FAN_MARK_ADD))
		}
		w.recordings = append(w.recordings, r)
	}
	return r, errors.Join(errs...)
}

// stopLocked has the recording be told no more.
func (r *Recording) stopLocked() {
	for _, w := range r.watches {
		w.recordings = slices.DeleteFunc(w.recordings, func(o *Recording) bool { return o == r })
	}
}

// Discard ends the recording. It may be called after End.
func (r *Recording) Discard() {
	g := r.watches[0].group
	g.mu.Lock()
	defer g.mu.Unlock()
	r.stopLocked()
}

// add takes an event, unless there were too many.
func (r *Recording) add(w *Watch, e event) {
	if r.full {
		return
	}
	r.events++
	if e.mask&unix.FAN_Q_OVERFLOW != 0 || r.events > maxEvents && float64(r.events-maxEvents) > maxRate*time.Since(r.began).Seconds() {
		r.full = true
		return
	}
	before := r.last[e.thread]
	delete(r.last, e.thread)
	switch {
	case !e.at.known():
		// The number of a file's names has changed. Where its thread has just moved
		// another to a name, that was its own (fs/namei.c, vfs_rename).
		if before.to != nil && before.lost == "" && e.mask&unix.FAN_ATTRIB != 0 {
			before.lost = string(e.file)
			before.to.was, before.to.first = true, before.lost
			r.last[e.thread] = before
		}
		return
	case before.lost != "" && before.lost == string(e.file) && e.mask&(unix.FAN_CREATE|unix.FAN_DELETE) != 0:
		before.to.was = false // it was of that name that it was told
	}
	if e.mask&unix.FAN_RENAME != 0 {
		r.moved(w, e, before.to)
	} else {
		r.happened(w, e)
	}
}

// moved takes the renaming of a name to another. before is the name that the thread had
// moved to last, immediately before.
func (r *Recording) moved(w *Watch, e event, before *name) {
	from, first := r.nameAt(w, e.at)
	if from == nil {
		return
	}
	// Of two that are exchanged, the second comes from where the first has gone.
	if first || from == before && from.file != string(e.file) {
		from.was, from.first = true, string(e.file)
	}
	from.left = true
	to, first := r.nameAt(w, e.to)
	if to == nil {
		return
	}
	to.file, to.left = string(e.file), false
	if first && len(r.last) < maxThreads {
		r.last[e.thread] = act{to: to}
	}
}

// happened takes an event of one name. The kernel joins the acts of one thread on one file
// under one name.
func (r *Recording) happened(w *Watch, e event) {
	n, first := r.nameAt(w, e.at)
	if n == nil {
		return
	}
	n.file = string(e.file)
	if first && e.mask&unix.FAN_CREATE == 0 {
		n.was, n.first = true, n.file
	}
	n.left = e.mask&unix.FAN_DELETE != 0
	n.closed = n.closed || e.mask&unix.FAN_CLOSE_WRITE != 0
	n.changed = n.changed || e.mask&unix.FAN_ATTRIB != 0
	if n.left && n.was && e.mask&unix.FAN_ONDIR != 0 {
		r.removed[string(w.fsid[:])+n.file] = n
	}
}

// nameAt has the events of a name, nil if there is no room for another.
func (r *Recording) nameAt(w *Watch, p place) (n *name, first bool) {
	r.key = append(append(append(r.key[:0], w.fsid[:]...), p.dir...), p.name...)
	if n, ok := r.names[string(r.key)]; ok {
		return n, false
	}
	if len(r.names) >= maxNames && !r.sweep() {
		r.full = true
		return nil, false
	}
	n = &name{watch: w, dir: string(p.dir), name: string(p.name)}
	r.names[string(r.key)] = n
	return n, true
}

// sweep makes room by forgetting names that came and went. The kernel tells them anew when
// they come again.
func (r *Recording) sweep() bool {
	before := len(r.names)
	maps.DeleteFunc(r.names, func(_ string, n *name) bool { return n.left && !n.was })
	return len(r.names) < before-before/8 // else it would soon be the next
}
