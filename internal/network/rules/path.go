package rules

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPath is the longest path that a rule can judge, in bytes. The time of a verdict grows with the path, and the
// verdicts of all sandboxes are made by one process.
const maxPath = 8 << 10

// segments splits the path of a URL and decodes the segments. One slash at the end does not count.
// Paths that servers read in different ways are errors: no rule can judge them.
func segments(path string) ([]string, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("has more than %d bytes", maxPath)
	}
	inside, isAbsolute := strings.CutPrefix(path, "/")
	if !isAbsolute {
		return nil, errors.New("does not begin with /")
	}
	if inside == "" {
		return nil, nil
	}
	var all []string
	for raw := range strings.SplitSeq(strings.TrimSuffix(inside, "/"), "/") {
		if strings.ContainsAny(raw, "?# ") {
			return nil, errors.New("has a ?, a # or a space; a rule knows no queries, and other such characters are written as %XX")
		}
		segment, err := url.PathUnescape(raw)
		if err != nil {
			return nil, errors.New("has a % without two hexadecimal digits")
		}
		if err := checkSegment(segment); err != nil {
			return nil, err
		}
		all = append(all, segment)
	}
	return all, nil
}

func checkSegment(s string) error {
	switch {
	case s == "":
		return errors.New("has two slashes in a row")
	case s == "." || s == "..":
		return fmt.Errorf("has the segment %s", s)
	case strings.Contains(s, "/"):
		return errors.New("has an encoded slash")
	case strings.Contains(s, `\`):
		return errors.New("has a backslash")
	case strings.Contains(s, ";"):
		return errors.New("has a semicolon")
	case !utf8.ValidString(s):
		return errors.New("is not UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		return errors.New("has a control character")
	case isEncoded(s):
		return errors.New("is encoded twice")
	}
	return nil
}

// isEncoded says whether a segment has another %XX.
func isEncoded(s string) bool {
	for i := range len(s) - 2 {
		if s[i] == '%' && isHex(s[i+1]) && isHex(s[i+2]) {
			return true
		}
	}
	return false
}

func isHex(c byte) bool { return strings.IndexByte("0123456789abcdefABCDEF", c) >= 0 }

// escapedPath is the opposite of segments. It has only characters that a shell leaves alone.
func escapedPath(path []string) string {
	if len(path) == 0 {
		return "/"
	}
	var b strings.Builder
	for _, segment := range path {
		b.WriteByte('/')
		for i := range len(segment) {
			if c := segment[i]; isPlain(c) {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		}
	}
	return b.String()
}

func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._@:+,=", c) >= 0
}
