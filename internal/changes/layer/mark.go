package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"
)

// A Mark is overlayfs's note on a directory of a layer.
type Mark struct {
	// Opaque directories hide the directories of the same path in lower layers.
	Opaque bool
	// Copied directories were copied up from a lower layer. All others were made
	// in the overlay.
	Copied bool
	// Origin is the file handle of the directory that was copied up, as overlayfs
	// stores it. It is empty where the lower file system has no handles.
	Origin string
}

// EachMark yields the marks of a layer's directories, by path, until yield returns an
// error. Directories without a mark are left out. So are those that lie too deep for
// Changes. It holds the names of the directories above the current one in memory, and
// nothing else.
func EachMark(ctx context.Context, dir *os.File, yield func(path string, m Mark) error) error {
	err := find(ctx, &Stack{}, []*os.File{dir}, func(path string, m Mark) error {
		if m == (Mark{}) {
			return nil
		}
		return yield(path, m)
	})
	if errors.Is(err, ErrTooDeep) {
		return nil
	}
	return err
}

var errUntrusted = errors.New("the opaque directories of the layer are not known; read the layer as root, or pass its marks")

// mayRead refuses layers whose opaque directories the kernel does not show to this
// process: hidden entries would seem to be there still.
func (s *Stack) mayRead() error {
	for _, l := range s.Layers {
		if l.Marks == nil && !readsTrusted() {
			return errUntrusted
		}
	}
	return nil
}

// readsTrusted tells whether the kernel shows trusted.* attributes: xattr(7),
// "Trusted extended attributes".
func readsTrusted() bool {
	var sets [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0])
	return err == nil && sets[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0 && !userns.RunningInUserNS()
}

// marks are a Mark and a note that is in no list of marks.
type marks struct {
	Mark
	// xwhiteouts: files in there can be whiteouts that are no devices, Linux 6.7.
	xwhiteouts bool
	// redirect is the place of the directory in the layers below, if a rename has moved it.
	redirect string
	// whole says that MakeWhole has marked the directory.
	whole bool
}

func (r *xattrReader) marks(dir int) (marks, error) {
	names, err := r.names(dir, "")
	if err != nil {
		return marks{}, err
	}
	var m marks
	for _, attr := range names {
		switch attr {
		case metacopyXattr:
			return marks{}, foreignError{attr}
		case opaqueXattr, originXattr, redirectXattr, wholeXattr:
		default:
			continue
		}
		value, err := r.value(dir, "", attr)
		if err != nil {
			return marks{}, err
		}
		switch attr {
		case opaqueXattr:
			m.Opaque, m.xwhiteouts = string(value) == "y", string(value) == "x"
		case originXattr:
			m.Copied, m.Origin = value != nil, string(value)
		case redirectXattr:
			m.redirect = string(value)
		case wholeXattr:
			m.whole = value != nil
		}
	}
	return m, nil
}

// marks are the marks of a layer's directory, from the caller's list if there is one.
func (s *Stack) marks(l *level, path string, x *xattrReader) (marks, error) {
	if known := s.Layers[l.layer].Marks; known != nil {
		return marks{Mark: known[path]}, nil
	}
	return x.marks(l.fd)
}

// EncodeMark returns a mark as one word without a NUL byte, for lists of marks.
func EncodeMark(m Mark) string {
	switch {
	case m.Opaque:
		return "opaque"
	case m.Copied:
		return fmt.Sprintf("from:%x", m.Origin)
	}
	return ""
}

// DecodeMark is the inverse of EncodeMark.
func DecodeMark(word string) (Mark, error) {
	if word == "opaque" {
		return Mark{Opaque: true}, nil
	}
	if digits, ok := strings.CutPrefix(word, "from:"); ok {
		origin := make([]byte, len(digits)/2)
		if _, err := fmt.Sscanf(digits, "%x", &origin); err == nil || digits == "" {
			return Mark{Copied: true, Origin: string(origin)}, nil
		}
	}
	return Mark{}, fmt.Errorf("%q is no mark of a directory", word)
}
