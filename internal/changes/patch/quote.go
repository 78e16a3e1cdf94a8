package patch

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// quote writes a name as git does in a patch, quote.c:quote_c_style(): as it is,
// or in quotes with C's escapes. A name with a space is quoted too, which git
// itself does not do: patch takes it for the end of the name on a line that
// begins with "diff --git".
func quote(name string) string {
	if strings.IndexFunc(name, special) < 0 {
		return name
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(name) {
		c := name[i]
		switch escape := strings.IndexByte("\a\b\t\n\v\f\r\"\\", c); {
		case escape >= 0:
			b.WriteByte('\\')
			b.WriteByte(`abtnvfr"\`[escape])
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, "\\%03o", c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// special are characters that a name has to be quoted for.
func special(r rune) bool {
	return r <= ' ' || r >= 0x7f || r == '"' || r == '\\'
}

// Parts of a path for which git apply refuses a whole patch: git's own directory on some
// file system, read-cache.c:verify_path() and path.c:is_ntfs_dotgit(), and links in place
// of git's own files. They are compiled when a patch is written: most starts of the program write none.
var gitsOwn, gitsOwnLinks = compiled(`(?is)^(\.git|git~1)[. ]*([:\\].*)?$`), compiled(`(?is)^(\.gitmodules|gi[a-z0-9]*~[0-9])`)

func compiled(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

func gitRefuses(path string, link bool) bool {
	for part := range strings.SplitSeq(path, "/") {
		if gitsOwn().MatchString(part) || link && gitsOwnLinks().MatchString(part) {
			return true
		}
	}
	return false
}
