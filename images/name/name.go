// Package name reads names of images as Docker does: busybox is docker.io/library/busybox:latest.
//
// The rules are those of github.com/distribution/reference, which the tests compare with. That package compiles its
// rules at the start of each program that imports it, and this program is started for each sandbox.
package name

import (
	"fmt"
	"strings"
)

// Name is a name of an image. Host and Repository are never empty.
type Name struct {
	Host, Repository string
	// Tag and Digest can be empty, and both can be set.
	Tag, Digest string
}

// The parts that Docker fills in.
const (
	defaultHost      = "docker.io"
	legacyHost       = "index.docker.io"
	officialPrefix   = "library/"
	defaultTag       = "latest"
	maxPart          = 255 // of a host, and of a repository
	maxTag           = 128
	digestPrefix     = "sha256:"
	digestDigits     = 64
	lower            = "abcdefghijklmnopqrstuvwxyz"
	digits           = "0123456789"
	letters          = lower + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	hexadecimal      = digits + "abcdef"
	anyHexadecimal   = hexadecimal + "ABCDEF"
	componentLetters = lower + digits
)

// Parse reads a name. The tag is "latest" if there is neither a tag nor a digest.
func Parse(text string) (Name, error) {
	n, err := parse(text)
	if err != nil {
		return Name{}, fmt.Errorf("invalid reference %q: %w", clip(text), err)
	}
	return n, nil
}

// clip bounds a text that is put into an error.
func clip(text string) string {
	const most = 200
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

func parse(text string) (n Name, err error) {
	if len(text) == digestDigits && consistsOf(text, hexadecimal) {
		return n, fmt.Errorf("64 hexadecimal digits are an id; write %s before them", digestPrefix)
	}
	rest, digest, hasDigest := strings.Cut(text, "@")
	if hasDigest {
		if !IsDigest(digest) {
			return n, fmt.Errorf("unsupported digest; use sha256: and 64 lower-case hexadecimal digits")
		}
		n.Digest = digest
	}
	n.Host, rest = splitHost(rest)
	repository, tag, hasTag := strings.Cut(rest, ":")
	if hasTag && !IsTag(tag) {
		return n, fmt.Errorf("the tag is not 1 to %d letters, digits, and any of _.-", maxTag)
	}
	n.Repository, n.Tag = repository, tag
	switch {
	case strings.ToLower(repository) != repository:
		return n, fmt.Errorf("the name of the repository must be lowercase")
	case !isRepository(repository):
		return n, fmt.Errorf("the name of the repository is not lower-case letters and digits, with single . _ / or some - between them")
	case !isHost(n.Host):
		return n, fmt.Errorf("the host is not a host name or an address with or without a port")
	case len(n.Repository) > maxPart || len(n.Host) > maxPart:
		return n, fmt.Errorf("the host or the repository has more than %d bytes", maxPart)
	}
	if n.Tag == "" && n.Digest == "" {
		n.Tag = defaultTag
	}
	return n, nil
}

// splitHost separates the host. A part before the first slash is a host if it cannot be the beginning of a repository at
// Docker's registry.
func splitHost(text string) (host, rest string) {
	first, after, found := strings.Cut(text, "/")
	switch {
	case !found:
		return defaultHost, officialPrefix + text
	case first == legacyHost:
		host, rest = defaultHost, after
	case first == "localhost" || strings.ContainsAny(first, ".:") || strings.ToLower(first) != first:
		host, rest = first, after
	default:
		host, rest = defaultHost, text
	}
	if host == defaultHost && !strings.Contains(rest, "/") {
		rest = officialPrefix + rest
	}
	return host, rest
}

func consistsOf(text, set string) bool { return text != "" && strings.Trim(text, set) == "" }

// IsTag says whether a text can be a tag.
func IsTag(text string) bool {
	return len(text) <= maxTag && consistsOf(text, letters+digits+"_.-") && text[0] != '.' && text[0] != '-'
}

// IsDigest says whether a text is a supported digest.
func IsDigest(text string) bool {
	rest, found := strings.CutPrefix(text, digestPrefix)
	return found && len(rest) == digestDigits && consistsOf(rest, hexadecimal)
}

// isRepository says whether all parts between slashes are letters and digits, with separators between them: one dot, one
// or two underscores, or dashes.
func isRepository(text string) bool {
	for part := range strings.SplitSeq(text, "/") {
		if part == "" {
			return false
		}
		for part != "" {
			rest := strings.TrimLeft(part, componentLetters)
			if rest == part {
				return false // it begins with a separator
			}
			if rest == "" {
				break
			}
			if part = strings.TrimLeft(rest, "._-"); part == "" || !isSeparator(rest[:len(rest)-len(part)]) {
				return false
			}
		}
	}
	return true
}

func isSeparator(text string) bool {
	return text == "." || text == "_" || text == "__" || consistsOf(text, "-")
}

func isHost(text string) bool {
	host := text
	if i := strings.LastIndexByte(text, ':'); i >= 0 && !strings.HasSuffix(text, "]") {
		if host = text[:i]; !consistsOf(text[i+1:], digits) {
			return false
		}
	}
	if inner, found := strings.CutPrefix(host, "["); found {
		inner, found = strings.CutSuffix(inner, "]")
		return found && consistsOf(inner, anyHexadecimal+":")
	}
	for part := range strings.SplitSeq(host, ".") {
		if !consistsOf(part, letters+digits+"-") || part[0] == '-' || part[len(part)-1] == '-' {
			return false
		}
	}
	return true
}

// String is the name with all defaults filled in.
func (n Name) String() string { return n.Host + "/" + n.Repository + n.suffix() }

func (n Name) suffix() (s string) {
	if n.Tag != "" {
		s = ":" + n.Tag
	}
	if n.Digest != "" {
		s += "@" + n.Digest
	}
	return s
}

// Familiar is the name without Docker's host and prefix, as Docker prints names.
func (n Name) Familiar() string { return n.FamiliarRepository() + n.suffix() }

// FamiliarRepository is Familiar without tag and digest.
func (n Name) FamiliarRepository() string {
	if n.Host != defaultHost {
		return n.Host + "/" + n.Repository
	}
	if rest, found := strings.CutPrefix(n.Repository, officialPrefix); found && !strings.Contains(rest, "/") {
		return rest
	}
	return n.Repository
}

// Full is the name under which Docker keeps an image: a digest makes the tag superfluous.
func (n Name) Full() string {
	if n.Digest != "" {
		n.Tag = ""
	}
	return n.String()
}
