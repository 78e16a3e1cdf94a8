package egress

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// followTime is the time between two looks for more events.
const followTime = 50 * time.Millisecond

// Events are the kept events of a sandbox, the oldest first. With follow, Events waits for more until the
// context ends or the sandbox is dismissed. The error is [ErrUnknown] for a sandbox that is not there.
// The texts of an event come from the sandbox. They have no control characters. There is no other check.
func (e Egress) Events(ctx context.Context, key string, follow bool) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if !isKey(key) || !statedir.Exists(e.boxDir(key)) {
			yield(Event{}, ErrUnknown)
			return
		}
		l := &eventLog{dir: e.boxDir(key), yield: yield}
		defer l.close()
		if err := l.run(ctx, follow); err != nil {
			yield(Event{}, err)
		}
	}
}

// An eventLog reads the events of one box.
type eventLog struct {
	dir   string
	yield func(Event, error) bool

	file    *os.File // nil: not there yet
	reader  *bufio.Reader
	partial string // the beginning of a line
}

var errEnough = errors.New("the caller has enough events")

func (l *eventLog) run(ctx context.Context, follow bool) error {
	err := l.begin()
	for err == nil {
		var more bool
		if more, err = l.readNew(); more || err != nil {
			continue
		}
		if !follow || !statedir.Exists(l.dir) {
			return nil
		}
		err = statedir.Sleep(ctx, followTime)
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// begin reads the events that are there. It opens the newest file first: while the caller takes the older events,
// that file can get the name of the older one.
func (l *eventLog) begin() error {
	newest, err := l.open(eventsName)
	if err != nil {
		return err
	}
	older, err := l.open(olderName)
	if err == nil {
		err = l.readAll(older)
	}
	if err != nil || newest == nil || l.hasOpen(newest.Stat()) {
		descriptor.Close(newest)
		return err
	}
	return l.readAll(newest)
}

// open returns nil if the file is missing.
func (l *eventLog) open(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(l.dir, name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	return f, erase.IgnoreMissing(err)
}

// readAll reads a file from its beginning to its end. It takes the file over, which may be nil.
func (l *eventLog) readAll(f *os.File) error {
	l.close()
	if f == nil {
		return nil
	}
	l.file, l.reader, l.partial = f, bufio.NewReader(f), ""
	return l.readLines()
}

// readNew reads the new events, and says whether there may be more.
func (l *eventLog) readNew() (more bool, err error) {
	if l.file != nil {
		if err := l.readLines(); err != nil {
			return false, err
		}
	}
	if l.isNewest() {
		return false, nil
	}
	if l.file != nil { // lines may have come before the file lost its name
		if err := l.readLines(); err != nil {
			return false, err
		}
	}
	newest, err := l.open(eventsName)
	if err != nil {
		return false, err
	}
	return true, l.readAll(newest)
}

// isNewest says whether the open file still has the name of the newest one.
func (l *eventLog) isNewest() bool {
	named, err := os.Lstat(filepath.Join(l.dir, eventsName))
	return err != nil || l.hasOpen(named, nil) // after an error there is none now
}

// hasOpen says whether the open file is the described one.
func (l *eventLog) hasOpen(described os.FileInfo, err error) bool {
	if err != nil || l.file == nil {
		return false
	}
	mine, err := l.file.Stat()
	return err == nil && os.SameFile(mine, described)
}

func (l *eventLog) readLines() error {
	for {
		text, err := l.reader.ReadString('\n')
		l.partial += text
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var e Event
		line := strings.TrimSuffix(l.partial, "\n")
		l.partial = ""
		if json.Unmarshal([]byte(line), &e) != nil {
			continue // a worker that was taken over can write any line
		}
		for _, text := range []*string{&e.Name, &e.Address, &e.Rule, &e.Decision, &e.Reason} {
			*text = printable(*text)
		}
		if !l.yield(e, nil) {
			return errEnough
		}
	}
}

// printable replaces the characters that would change a terminal. The strings of JSON can have them.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

func (l *eventLog) close() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}
