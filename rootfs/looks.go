package rootfs

import (
	"path"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// looks remembers which paths a source lacks. There are many secrets, and most
// hosts have few of them.
type looks struct {
	s     *source
	lacks map[string]bool
	// top are the names in the source, in lower case. It is nil if they are not known.
	top []string
}

func newLooks(s *source) *looks { return &looks{s, map[string]bool{}, topNames(s)} }

// mayHave tells whether a source can have something at a path. It says yes where it
// would have to follow a link.
func (l *looks) mayHave(rel string) bool {
	if first, _, _ := strings.Cut(rel, "/"); l.top != nil && !slices.Contains(l.top, strings.ToLower(first)) {
		return false
	}
	for at, rest := "", rel; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		at = path.Join(at, name)
		lacks, known := l.lacks[at]
		if !known {
			var st unix.Stat_t
			err := unix.Fstatat(l.s.fd, at, &st, unix.AT_SYMLINK_NOFOLLOW)
			if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
				return true
			}
			lacks = absent(err)
			l.lacks[at] = lacks
		}
		if lacks {
			return false
		}
	}
	return true
}

// listing are the types of filesystems whose directories list all that a lookup can find. Others, such as autofs and
// FUSE, can find more.
var listing = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC}

// mostListed is the number of names from which on a look at each secret takes less time than a list.
const mostListed = 1000

// topNames are the names in a source, in lower case: a lookup can ignore the case. They are nil if the source
// is large, cannot be listed, or can find a name that it does not list. A name that is not of ASCII is
// such a name, because a lookup that ignores the case can take different names for the same.
func topNames(s *source) []string {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(s.fd, &fs); err != nil || !slices.Contains(listing, fs.Type) {
		return nil
	}
	names, err := s.names(mostListed)
	if err != nil || len(names) > mostListed {
		return nil
	}
	top := make([]string, len(names))
	for i, name := range names {
		if strings.ContainsFunc(name, func(r rune) bool { return r > unicode.MaxASCII }) {
			return nil
		}
		top[i] = strings.ToLower(name)
	}
	return top
}
