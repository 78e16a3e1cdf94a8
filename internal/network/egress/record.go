package egress

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
)

// Files of a box.
const (
	namesName  = "names"
	eventsName = "events"
	// olderName has the events before those in eventsName.
	olderName = "events.old"
)

// maxEvents bounds each of the two files with events, in bytes.
const maxEvents = 512 << 10

// A record has the names, the events and the counts of a box. The names and events are on disk. A full
// disk stops nothing: the names stay in memory until there is room, and events get lost.
type record struct {
	dir    string
	names  []string
	known  map[string]struct{} // the same names; the worker can repeat one
	counts Counts
	// written is how many names the file has, and writtenSize how many bytes.
	written     int
	writtenSize int64
	eventsSize  int64
}

// openRecord opens the record of a box, which may be there from an earlier parent.
func openRecord(dir string) (*record, error) {
	r := &record{dir: dir, known: map[string]struct{}{}}
	if err := r.makeDir(); err != nil && !isFull(err) {
		return nil, err
	}
	if err := r.readNames(); err != nil {
		return nil, fmt.Errorf("read the names of the sandbox: %w", err)
	}
	if info, err := os.Lstat(r.path(eventsName)); err == nil {
		r.eventsSize = info.Size()
	}
	return r, nil
}

func (r *record) path(name string) string { return filepath.Join(r.dir, name) }

func (r *record) makeDir() error { return os.MkdirAll(r.dir, 0o700) }

func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// maxNames bounds the file with the names, in bytes.
const maxNames = link.MaxNames * (link.MaxName + 1)

func (r *record) readNames() error {
	f, err := os.OpenFile(r.path(namesName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxNames))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		name, isWhole := strings.CutSuffix(line, "\n")
		if !isWhole || !link.IsName(name) || !r.keep(name) { // a parent was killed while it wrote
			break
		}
		r.writtenSize += int64(len(line))
	}
	r.written = len(r.names)
	return nil
}

// keep is false for a name that the record has, and for one beyond the bound.
func (r *record) keep(name string) bool {
	if _, isKnown := r.known[name]; isKnown || len(r.names) >= link.MaxNames {
		return false
	}
	r.names, r.known[name] = append(r.names, name), struct{}{}
	return true
}

// addName adds a name of the worker, which must be a new one: the next worker refuses a list with a repetition.
func (r *record) addName(name string) {
	if !r.keep(name) {
		return
	}
	text := strings.Join(r.names[r.written:], "\n") + "\n"
	if err := appendTo(r.path(namesName), text, r.writtenSize); err != nil {
		_ = r.makeDir() // the disk may have room again for the next name
		return
	}
	r.written = len(r.names)
	r.writtenSize += int64(len(text))
}

// addEvent adds counts, and a line to the events. If they are too many, the older half goes.
func (r *record) addEvent(line string, counts Counts) {
	r.counts.Add(counts)
	if line == "" {
		return
	}
	if r.eventsSize+int64(len(line)) >= maxEvents && os.Rename(r.path(eventsName), r.path(olderName)) == nil {
		r.eventsSize = 0
	}
	if err := appendTo(r.path(eventsName), line+"\n", r.eventsSize); err != nil {
		r.counts.Add(Counts{Dropped: 1})
		_ = r.makeDir() // the disk may have room again for the next event
		return
	}
	r.eventsSize += int64(len(line)) + 1
}

// appendTo writes the whole text to a file of this size, or leaves the file with the size.
func appendTo(path, text string, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text), size); err != nil {
		return errors.Join(err, f.Truncate(size))
	}
	return nil
}

// remove removes the record.
func (r *record) remove() error { return statedir.RemoveAll(r.dir) }
