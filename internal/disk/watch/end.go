package watch

import (
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"golang.org/x/sys/unix"
)

// A Change is the change of one name during a recording.
type Change struct {
	// Watch that it was told by.
	Watch *Watch
	// Path is where the mount shows it on which the directory was that is watched,
	// from the root of that mount's namespace, of which a detached mount is all.
	Path string
	// Was says that it was there at first, Is that it is there now.
	Was, Is bool
	// Mode and Rdev are those of the present file.
	Mode uint32
	Rdev uint64
}

// End ends the recording and returns the changes, in no order. A name that came and went
// is not among them; a name that was and is there has other content, attributes, or
// another file. missed says that there were more changes than could be told.
func (r *Recording) End() (changes []Change, missed bool) {
	g := r.watches[0].group
	err := g.take()
	g.mu.Lock()
	r.stopLocked()
	l := &lookup{recording: r, from: map[*Watch][]Root{}, roots: map[*Watch][]*os.File{}, gone: map[string]string{}, dir: -1}
	for _, w := range r.watches {
		l.from[w] = slices.Clone(w.roots)
	}
	g.mu.Unlock()
	missed = r.full || err != nil
	defer l.close()
	// One directory after the other, each opened once.
	names := slices.SortedFunc(maps.Values(r.names), func(a, b *name) int { return strings.Compare(a.dir, b.dir) })
	for _, n := range names {
		c, ok := l.change(n)
		if ok {
			changes = append(changes, c)
		}
	}
	return changes, missed || l.missed
}

// A lookup finds the present state of names.
type lookup struct {
	recording *Recording
	// from are the roots, and roots those that are open.
	from   map[*Watch][]Root
	roots  map[*Watch][]*os.File
	missed bool
	// gone are the paths of directories that were removed, by their handles.
	gone map[string]string

	// at is the directory that is open, if dir is not -1.
	at    string
	watch *Watch
	dir   int
	path  string
}

// close lets go of all that is open.
func (l *lookup) close() {
	l.leave()
	for _, roots := range l.roots {
		for _, root := range roots {
			root.Close()
		}
	}
}

// rootsOf are those of a watch, opened when they are first needed.
func (l *lookup) rootsOf(w *Watch) []*os.File {
	if roots, ok := l.roots[w]; ok {
		return roots
	}
	l.roots[w] = nil
	for _, open := range l.from[w] {
		root, err := open()
		if err != nil {
			l.missed = true
			continue
		}
		l.roots[w] = append(l.roots[w], root)
	}
	return l.roots[w]
}

func (l *lookup) leave() {
	if l.dir >= 0 {
		_ = unix.Close(l.dir) // it was only looked at
	}
	l.dir = -1
}

// change is the change of a name, if there is one.
func (l *lookup) change(n *name) (c Change, ok bool) {
	if l.at != n.dir || l.watch != n.watch {
		l.enter(n.watch, n.dir)
	}
	if l.path == "" && n.watch.kind != unix.FAN_MARK_MOUNT {
		return c, false
	}
	c = Change{Watch: n.watch, Path: path.Join(l.path, n.name), Was: n.was}
	var st unix.Statx_t
	if l.dir >= 0 {
		err := unix.Statx(l.dir, n.name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, wanted, &st)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			l.missed = true
			return c, false
		}
		c.Is = err == nil
	}
	if n.watch.kind == unix.FAN_MARK_MOUNT && !l.written(n, &c, &st) {
		return c, false
	}
	c.Mode, c.Rdev = uint32(st.Mode), unix.Mkdev(st.Rdev_major, st.Rdev_minor)
	if !c.Was || !c.Is {
		return c, c.Was != c.Is
	}
	// A process that opens a file for writing need not write.
	return c, n.changed || n.file != n.first || n.closed && !l.old(st.Ctime)
}

const wanted = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_INO | unix.STATX_CTIME | unix.STATX_BTIME

// old says that a time is before the recording.
func (l *lookup) old(t unix.StatxTimestamp) bool {
	return time.Unix(t.Sec, int64(t.Nsec)).Before(l.recording.since)
}

// written completes the change of a file that was written to through a mount, of
// which nothing else is told: whether it is new shows in the time it was made, and
// where it is now, if it was moved, its handle.
func (l *lookup) written(n *name, c *Change, st *unix.Statx_t) bool {
	if !c.Is {
		for _, root := range l.rootsOf(n.watch) {
			if c.Path, c.Is = l.elsewhere(root, n.file, st); c.Is {
				break
			}
		}
	}
	c.Was = st.Mask&unix.STATX_BTIME == 0 || l.old(st.Btime)
	return c.Is
}

// elsewhere is the present place of a file, below a root, and its description.
func (l *lookup) elsewhere(root *os.File, handle string, st *unix.Statx_t) (string, bool) {
	fd, err := openHandle(root, handle, 0)
	if err != nil {
		return "", false // it is gone
	}
	defer unix.Close(fd)
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, wanted|unix.STATX_NLINK, st) != nil || st.Nlink == 0 {
		return "", false
	}
	where, err := os.Readlink(fdPath(fd))
	return where, err == nil && below(root, where, st.Ino)
}

// enter opens a directory by its handle. Of one that is gone there is a path only,
// if even that is known.
func (l *lookup) enter(w *Watch, handle string) {
	l.leave()
	l.watch, l.at, l.path = w, handle, ""
	for _, root := range l.rootsOf(w) {
		if l.open(root, handle) {
			return
		}
	}
	l.path = l.lost(w, handle)
}

func (l *lookup) open(root *os.File, handle string) bool {
	fd, err := openHandle(root, handle, unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	var st unix.Stat_t
	where := ""
	if err = unix.Fstat(fd, &st); err == nil && st.Nlink > 0 {
		where, err = os.Readlink(fdPath(fd))
	}
	if where == "" || l.watch.kind == unix.FAN_MARK_MOUNT && !below(root, where, st.Ino) {
		l.missed = l.missed || err != nil
		_ = unix.Close(fd) // it was only looked at
		return false
	}
	l.dir, l.path = fd, where
	return true
}

func openHandle(root *os.File, handle string, flags int) (int, error) {
	kind := int32(binary.NativeEndian.Uint32([]byte(handle)))
	return unix.OpenByHandleAt(int(root.Fd()), unix.NewFileHandle(kind, []byte(handle[4:])), flags|unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// below says that a file is where a mount seems to show it, and not somewhere on
// its file system that the mount does not reach: there, the kernel's paths begin
// elsewhere.
func below(root *os.File, where string, inode uint64) bool {
	var st unix.Stat_t
	top, err := os.Readlink(fdPath(int(root.Fd())))
	if err != nil || unix.Fstat(int(root.Fd()), &st) != nil {
		return false
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return where == top && st.Ino == inode
	}
	relative, ok := strings.CutPrefix(where+"/", strings.TrimSuffix(top, "/")+"/")
	if !ok {
		return false
	}
	fd, err := descriptor.Open(int(root.Fd()), "./"+strings.TrimSuffix(relative, "/"), descriptor.OneMount, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Fstat(fd, &st) == nil && st.Ino == inode
}

// lost is where a directory was that was removed.
func (l *lookup) lost(w *Watch, handle string) string {
	key := string(w.fsid[:]) + handle
	if known, ok := l.gone[key]; ok {
		return known
	}
	l.gone[key] = "" // should the kernel ever tell of a circle
	n, ok := l.recording.removed[key]
	if !ok {
		return "" // it came and went
	}
	above := &lookup{recording: l.recording, from: l.from, roots: l.roots, gone: l.gone, dir: -1}
	defer above.leave()
	above.enter(w, n.dir)
	if above.path == "" {
		return ""
	}
	where := path.Join(above.path, n.name)
	if len(where) >= unix.PathMax {
		l.missed = true
		return ""
	}
	l.gone[key] = where
	return where
}
