package layer

import (
	"golang.org/x/sys/unix"
)

// push goes into a directory, which it reads.
func (w *walker) push(d *directory) {
	if d.depth > maxDepth || len(d.path) > maxPath {
		w.fail(d.path, "read", ErrTooDeep)
		d.close()
		return
	}
	if err := w.readAll(d); err != nil && !isGone(err) {
		w.fail(d.path, "read", err)
	}
	if len(d.entries) == 0 {
		d.close()
		return
	}
	if n := len(w.dirs); n > 0 && len(w.dirs[n-1].entries) == 0 {
		w.pop() // nothing left to do in there
	}
	w.dirs = append(w.dirs, d)
	w.open += d.descriptors()
	w.shrink()
}

// readAll reads a directory of all layers, and of the base if deleted paths are to be
// listed. After an error the read part remains.
func (w *walker) readAll(d *directory) error {
	var failed error
	for _, l := range d.levels {
		var err error
		if d.entries, err = w.entries.entries(d.entries, l.fd, l.layer); err != nil {
			failed = readError(err, l.fd)
		}
	}
	if d.base >= 0 && d.hidden && w.o.Deleted {
		fd, err := openPath(d.base, "", unix.O_RDONLY|unix.O_DIRECTORY)
		if err == nil {
			d.entries, err = w.entries.entries(d.entries, fd, uint16(len(w.Layers)))
			unix.Close(fd)
		}
		if err != nil {
			failed = err
		}
	}
	if d.base >= 0 && !d.hidden {
		for _, name := range w.applied[d.path] {
			d.entries = append(d.entries, entry{name: name, layer: uint16(len(w.Layers))})
		}
	}
	d.entries = inOrder(d.entries)
	if w.o.Names && d.base >= 0 && len(d.entries) >= manyNames {
		d.names = w.readNames(d)
	}
	return failed
}

// manyNames are so many that reading the base's directory pays, if it does not
// have several times as many.
const manyNames = 8

// readNames reads the directory of the base. It returns nil after an error, and for a directory with several times as many
// names. Then the caller looks each name up.
func (w *walker) readNames(d *directory) []entry {
	fd, err := openPath(d.base, "", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	for names := []entry{}; len(names) <= 4*len(d.entries); {
		before := len(names)
		if names, err = w.entries.readMore(names, fd, 0); err != nil {
			return nil
		}
		if len(names) == before {
			return inOrder(names)
		}
	}
	return nil
}

// readError: a directory that may not be read was opened only to look names up.
func readError(err error, fd int) error {
	if flags, e := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); e == nil && flags&unix.O_PATH != 0 && err == unix.EBADF {
		return unix.EACCES
	}
	return err
}

func (w *walker) pop() {
	last := len(w.dirs) - 1
	if !w.dirs[last].closed {
		w.open -= w.dirs[last].descriptors()
		w.dirs[last].close()
	}
	w.dirs = w.dirs[:last]
	w.lowest = min(w.lowest, last)
}

// shrink closes directories further up, but not the one we are in.
func (w *walker) shrink() {
	for ; w.open > maxOpen && w.lowest < len(w.dirs)-1; w.lowest++ {
		if d := w.dirs[w.lowest]; !d.closed {
			w.open -= d.descriptors()
			d.close()
		}
	}
}

// reopen opens the directory that we are in again, and those just above it on
// the way, which will be needed next.
func (w *walker) reopen() {
	last := len(w.dirs) - 1
	some := max(1, maxOpen/2/(len(w.Layers)+1))
	w.lowest = max(0, last-some+1)
	var above *directory
	for _, d := range w.dirs[w.lowest:] {
		if d.closed {
			w.openAgain(d, above)
			w.open += d.descriptors()
		}
		above = d
	}
}

// openAgain opens a directory from one above it or, without, from the root. A missing
// directory counts as empty.
func (w *walker) openAgain(d, above *directory) {
	d.closed = false
	if above != nil && above.path == "" {
		above = nil
	}
	for i := range d.levels {
		layer := d.levels[i].layer
		from := int(w.Layers[layer].Dir.Fd())
		if above != nil {
			from = above.level(layer).fd
		}
		d.levels[i].fd = openFrom(from, above, d)
	}
	if d.base == shut {
		from := int(w.Base.Fd())
		if above != nil {
			from = above.base
		}
		d.base = openFrom(from, above, d)
	}
}

func openFrom(fd int, above, d *directory) int {
	path := d.path
	if above != nil {
		path = path[len(above.path)+1:]
	}
	if fd < 0 {
		return none
	}
	fd, err := openPath(fd, path, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return none
	}
	return fd
}

func (w *walker) close() {
	for len(w.dirs) > 0 {
		w.pop()
	}
}
