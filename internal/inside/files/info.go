package files

import (
	"encoding/binary"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Info describes a file as it is inside.
type Info struct {
	Name     string
	Size     int64
	Mode     fs.FileMode
	ModTime  time.Time
	UID, GID uint32
	// Link is a symbolic link's target.
	Link string
}

// Kind is the kind of a change of a file.
type Kind uint8

// The kinds of events.
const (
	Created Kind = iota + 1
	Modified
	Removed
	// Lost: there were more events than were taken.
	Lost
)

// Event tells that something in a directory that is watched has changed.
type Event struct {
	Kind Kind
	// Path below the directory, empty for itself.
	Path string
	// Dir: it is a directory.
	Dir bool
}

// fileMode is a mode of the kernel's in Go's form.
func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		m |= fs.ModeDir
	case unix.S_IFLNK:
		m |= fs.ModeSymlink
	case unix.S_IFIFO:
		m |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		m |= fs.ModeSocket
	case unix.S_IFCHR:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFBLK:
		m |= fs.ModeDevice
	default:
		m |= fs.ModeIrregular
	}
	for bit, flag := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

// append puts the Info on the wire, with a mode of Go's.
func (i *Info) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(i.Mode))
	b = le.AppendUint64(b, uint64(i.Size))
	b = le.AppendUint64(b, uint64(i.ModTime.UnixNano()))
	b = le.AppendUint32(b, i.UID)
	b = le.AppendUint32(b, i.GID)
	return appendText(appendText(b, i.Name), i.Link)
}

// modes are the bits that a mode may have.
const modes = fs.ModeType | fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

func (c *cursor) info() Info {
	i := Info{Mode: fs.FileMode(c.word()) & modes, Size: c.long()}
	if at := c.signed(); at > minTime && at < maxTime {
		i.ModTime = time.Unix(0, at)
	}
	i.UID, i.GID = c.word(), c.word()
	i.Name, i.Link = c.text(maxName), c.text(maxPath)
	if c.err == nil && i.Name != "" && !isName(i.Name) {
		c.fail("an entry called " + strconv.Quote(i.Name))
	}
	if strings.IndexByte(i.Link, 0) >= 0 {
		c.fail("a link to " + strconv.Quote(i.Link))
	}
	return i
}

func (c *cursor) event() Event {
	e := Event{Kind: Kind(c.byte()), Dir: c.byte() != 0, Path: c.text(maxPath)}
	if c.err == nil && (e.Kind < Created || e.Kind > Lost) {
		c.fail("an event of kind " + strconv.Itoa(int(e.Kind)))
	}
	if e.Path != "" {
		for part := range strings.SplitSeq(e.Path, "/") {
			if !isName(part) {
				c.fail("an event about " + strconv.Quote(e.Path))
			}
		}
	}
	return e
}

// isName says that s can name an entry of a directory.
func isName(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= maxName && !strings.ContainsAny(s, "/\x00")
}
