package layer

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// entry is a name in a directory. Its layer is that of the stack, or the number
// of layers for the base.
type entry struct {
	name  string
	ino   uint64
	layer uint16
	typ   uint8 // DT_*, or one of those below
}

const (
	typeWhiteout = unix.DT_WHT
	typeGone     = 0xff
)

// maxEntries bounds a walk: a sandbox that renames as fast as it is read could
// keep it going.
const maxEntries = 1 << 25

var errEndless = fmt.Errorf("more than %d names: stop the writer there and list it again", maxEntries)

// reader reads directories, all into one buffer.
type reader struct {
	buf  []byte
	read int
}

// entries appends those of a directory.
func (r *reader) entries(into []entry, fd int, layer uint16) ([]entry, error) {
	for {
		before := len(into)
		var err error
		into, err = r.readMore(into, fd, layer)
		if err != nil || len(into) == before {
			return into, err
		}
		if r.read += len(into) - before; r.read > maxEntries {
			return into, errEndless
		}
	}
}

// readMore reads on; at the end of the directory it adds nothing. The read bytes stay in
// memory of their own, and the names are parts of it.
func (r *reader) readMore(into []entry, fd int, layer uint16) ([]entry, error) {
	if r.buf == nil {
		r.buf = make([]byte, 64<<10)
	}
	for before := len(into); ; {
		n, err := descriptor.Retry(func() (int, error) { return unix.Getdents(fd, r.buf) })
		if err != nil || n == 0 {
			return into, err
		}
		into = parseEntries(into, string(r.buf[:n]), layer)
		if len(into) > before { // there can be "." and ".." alone
			return into, nil
		}
	}
}

// The fields of struct linux_dirent64, getdents64(2).
const (
	direntInode  = 0
	direntLength = 16
	direntType   = 18
	direntName   = 19
)

func parseEntries(into []entry, raw string, layer uint16) []entry {
	for len(raw) >= direntName {
		var head [direntName]byte
		copy(head[:], raw)
		length := int(binary.NativeEndian.Uint16(head[direntLength:]))
		if length < direntName || length > len(raw) {
			return into
		}
		name, _, _ := strings.Cut(raw[direntName:length], "\x00")
		if name != "" && name != "." && name != ".." && !strings.Contains(name, "/") {
			into = append(into, entry{name: name, ino: binary.NativeEndian.Uint64(head[direntInode:]), layer: layer, typ: head[direntType]})
		}
		raw = raw[length:]
	}
	return into
}

// inOrder sorts by name, the uppermost layer's first, and drops names that a directory,
// changed meanwhile, has told twice.
func inOrder(all []entry) []entry {
	slices.SortFunc(all, func(a, b entry) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return cmp.Compare(a.layer, b.layer)
	})
	return slices.CompactFunc(all, func(a, b entry) bool { return a.layer == b.layer && a.name == b.name })
}
