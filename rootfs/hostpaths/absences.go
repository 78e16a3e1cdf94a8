package hostpaths

import (
	"path"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// Absences remember which paths a directory lacks. There are many secrets, and most
// hosts have few of them.
type Absences struct {
	fd    int
	lacks map[string]bool
	// top is the list of names in the directory, in lower case. The list is nil if the names are not known.
	top []string
}

// NewAbsences looks at a directory, which must stay open. names returns a number of names in the directory, and
// one more if there are more.
func NewAbsences(fd int, names func(limit int) ([]string, error)) *Absences {
	return &Absences{fd, map[string]bool{}, topNames(fd, names)}
}

// MayHave tells whether the directory can have something at a path. It says yes where it
// would have to follow a link.
func (l *Absences) MayHave(rel string) bool {
	if first, _, _ := strings.Cut(rel, "/"); l.top != nil && isASCII(first) && !slices.Contains(l.top, strings.ToLower(first)) {
		return false
	}
	for at, rest := "", rel; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		at = path.Join(at, name)
		lacks, known := l.lacks[at]
		if !known {
			var st unix.Stat_t
			err := unix.Fstatat(l.fd, at, &st, unix.AT_SYMLINK_NOFOLLOW)
			if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
				return true
			}
			lacks = Absent(err)
			l.lacks[at] = lacks
		}
		if lacks {
			return false
		}
	}
	return true
}

// listing are the types of filesystems whose directories list all that a lookup can find. Others, such as autofs and
// FUSE, can find more. Btrfs and tmpfs can leave out a name that is replaced at that moment.
var listing = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC}

// mostListed bounds a list. A longer list takes more time than a look at each secret.
const mostListed = 1000

// topNames is the list of names in a directory, in lower case, because a lookup can ignore the case. The list is nil if
// the directory is large or cannot be listed. It is also nil if a name is not ASCII: a lookup that ignores the case
// can find such a name by another name.
func topNames(fd int, list func(limit int) ([]string, error)) []string {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || !slices.Contains(listing, fs.Type) {
		return nil
	}
	names, err := list(mostListed)
	if err != nil || len(names) > mostListed {
		return nil
	}
	top := make([]string, len(names))
	for i, name := range names {
		if !isASCII(name) {
			return nil
		}
		top[i] = strings.ToLower(name)
	}
	return top
}

func isASCII(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool { return r > unicode.MaxASCII })
}
