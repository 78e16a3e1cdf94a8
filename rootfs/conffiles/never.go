package conffiles

import (
	_ "embed"
	"slices"
	"strings"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

//go:embed never.txt
var neverText string

var neverGroups = sync.OnceValue(func() []NeverGroup { return hostpaths.ParseGroups(neverText) })

// A NeverGroup is names of one kind that no sandbox sees, although a package has brought a file
// of this name.
type NeverGroup = hostpaths.Group

// NeverGroups are all these names; the caller must not change them. A name without * is a path below /etc, with all
// below. A name that ends with * is the begin of such a path. A name that begins with * is in, or with one * only at
// the end of, the name of the file or of a directory above; upper and lower case are the same there.
func NeverGroups() []NeverGroup { return neverGroups() }

// neverNames are the names of [NeverGroups] in the form in which they are compared.
type neverNames struct {
	paths  map[string]string // an exact path
	others []string          // with a *
}

var never = sync.OnceValue(func() neverNames {
	n := neverNames{paths: map[string]string{}}
	for _, group := range NeverGroups() {
		for _, name := range group.Names {
			if strings.Contains(name, "*") {
				n.others = append(n.others, name)
			} else {
				n.paths[name] = name
			}
		}
	}
	return n
})

// Never returns the name of [NeverGroups] that hides a path below /etc, or an empty string.
func Never(name string) string {
	all := never()
	for end := 0; end < len(name); {
		next := strings.IndexByte(name[end:], '/')
		if next < 0 {
			next = len(name) - end
		}
		whole, part := name[:end+next], strings.ToLower(name[end:end+next])
		if found := all.paths[whole]; found != "" {
			return found
		}
		at := slices.IndexFunc(all.others, func(pattern string) bool { return matches(pattern, whole, part) })
		if at >= 0 {
			return all.others[at]
		}
		end += next + 1
	}
	return ""
}

// matches compares a pattern with a path, or with the last part of the path in lower case.
func matches(pattern, whole, part string) bool {
	word, begins := strings.CutPrefix(pattern, "*")
	if !begins {
		head, tail, _ := strings.Cut(pattern, "*")
		return len(whole) >= len(head)+len(tail) && strings.HasPrefix(whole, head) && strings.HasSuffix(whole, tail)
	}
	if word, ends := strings.CutSuffix(word, "*"); ends {
		return strings.Contains(part, word)
	}
	return strings.HasSuffix(part, word)
}
