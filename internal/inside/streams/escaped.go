package streams

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escaped returns a text of several lines for a terminal. The text can have names that a sandbox
// has chosen. Characters that a terminal might obey are escaped as in Go.
func Escaped(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == '\n' || r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(s[:n])
		} else {
			b.WriteString(strings.Trim(strconv.Quote(s[:n]), `"`))
		}
		s = s[n:]
	}
	return b.String()
}

// Visible returns a name that a sandbox has chosen for one line of a text. The name is quoted if a terminal or a reader
// would take a part of it for something else.
func Visible(name string) string {
	if utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return name
	}
	return strconv.Quote(name)
}
