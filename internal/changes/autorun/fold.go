package autorun

import (
	"strings"
	"unicode"
)

// names splits a path into names, as file systems that ignore case compare them. Git
// guards against the same spellings: git's path.c:is_ntfs_dotgit() and
// utf8.c:is_hfs_dotgit().
func names(path string) []string {
	if hasOneSpelling(path) {
		return strings.Split(path, "/")
	}
	all := strings.Split(fold(path), "/")
	for i, name := range all {
		name, _, _ = strings.Cut(name, ":") // a stream of NTFS
		if trimmed := strings.TrimRight(name, " ."); trimmed != "" {
			name = trimmed
		}
		if name == "git~1" { // the short name of .git
			name = ".git"
		}
		all[i] = name
	}
	return all
}

// hasOneSpelling tells whether a path has one spelling only. Most paths do.
func hasOneSpelling(path string) bool {
	last := byte('/')
	for i := range len(path) {
		c := path[i]
		if c >= 0x80 || 'A' <= c && c <= 'Z' || c == ':' || c == '~' || c == '/' && (last == ' ' || last == '.') {
			return false
		}
		last = c
	}
	return last != ' ' && last != '.'
}

// fold maps a text to the form in which the kernel compares the names of a directory
// that ignores case, as far as the result is ASCII: Documentation/filesystems/ext4
// "Case-insensitive file name lookups".
func fold(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 }) {
		return strings.ToLower(s)
	}
	s = strings.Map(func(r rune) rune {
		if r >= 0x80 && unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) {
			return -1
		}
		return unicode.ToLower(unicode.ToUpper(r))
	}, s)
	return strings.NewReplacer("ß", "ss", "ﬀ", "ff", "ﬁ", "fi", "ﬂ", "fl", "ﬃ", "ffi", "ﬄ", "ffl", "ﬅ", "st", "ﬆ", "st").Replace(s)
}
