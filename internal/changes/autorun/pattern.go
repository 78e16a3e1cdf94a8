package autorun

import (
	"path"
	"strings"
)

// A pattern is an entry that can be compared.
type pattern struct {
	Entry
	parts []part
}

// A part is one name of a pattern.
type part struct {
	text           string
	any            bool // it is **
	wild           bool
	prefix, suffix string // of a wild one
}

func compile(e Entry) *pattern {
	p := &pattern{Entry: e}
	for _, name := range names(strings.TrimPrefix(e.Pattern, "/")) {
		next := part{text: name, any: name == "**", wild: strings.Contains(name, "*")}
		if next.wild {
			next.prefix = name[:strings.IndexByte(name, '*')]
			next.suffix = name[strings.LastIndexByte(name, '*')+1:]
		}
		p.parts = append(p.parts, next)
	}
	return p
}

func (p *part) matches(name string) bool {
	if !p.wild {
		return p.text == name
	}
	if !strings.HasPrefix(name, p.prefix) || !strings.HasSuffix(name, p.suffix) {
		return false
	}
	ok, err := path.Match(p.text, name)
	return ok && err == nil
}

// A fit is how a path meets a pattern.
type fit int

const (
	fitNone  fit = iota
	fitAbove     // the path is a directory on the way to the pattern
	fitBelow     // the path lies below the pattern
	fitAt
)

// matchParts compares parts with the names of a path from its begin on.
func matchParts(parts []part, names []string) fit {
	for i := range parts {
		switch {
		case parts[i].any:
			best := fitNone
			for at := range len(names) + 1 {
				best = max(best, matchParts(parts[i+1:], names[at:]))
			}
			return best
		case len(names) == 0:
			return fitAbove
		case !parts[i].matches(names[0]):
			return fitNone
		}
		names = names[1:]
	}
	if len(names) > 0 {
		return fitBelow
	}
	return fitAt
}
