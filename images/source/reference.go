package source

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/images/name"
)

// Kind is a kind of place that an image is read from.
type Kind string

// The kinds, by the prefix of their references.
const (
	Registry      Kind = "registry"
	Layout        Kind = "oci"
	LayoutArchive Kind = "oci-archive"
	DockerArchive Kind = "docker-archive"
	Root          Kind = "rootfs"
	Directory     Kind = "dir"
	Stdin         Kind = "-"
)

// kinds are those with a path behind their prefix.
var kinds = []Kind{Layout, LayoutArchive, DockerArchive, Root, Directory}

// Reference is a parsed reference: see the package comment.
type Reference struct {
	Kind Kind
	// Host and Repository are of a registry, such as "docker.io" and "library/debian".
	Host, Repository string
	// Path is of all other kinds but Stdin.
	Path string
	// Tag is of registries and layouts, Digest of registries.
	Tag, Digest string
}

// maxReference bounds a reference: a path, and a tag.
const maxReference = 4096 + 256

// Parse parses a reference.
func Parse(text string) (Reference, error) {
	if text == "-" {
		return Reference{Kind: Stdin}, nil
	}
	if len(text) > maxReference || strings.ContainsRune(text, 0) {
		return Reference{}, errors.New("invalid reference: too long, or with a zero byte")
	}
	for _, kind := range kinds {
		if rest, ok := strings.CutPrefix(text, string(kind)+":"); ok {
			return parsePath(kind, rest)
		}
	}
	return parseName(text)
}

func parsePath(kind Kind, rest string) (Reference, error) {
	ref := Reference{Kind: kind, Path: rest}
	if colon := strings.LastIndexByte(rest, ':'); colon > strings.LastIndexByte(rest, '/') && (kind == Layout || kind == LayoutArchive) {
		ref.Path, ref.Tag = rest[:colon], rest[colon+1:]
		if !validTag(ref.Tag) {
			return Reference{}, fmt.Errorf("invalid tag %q: use letters, digits, _.-", ref.Tag)
		}
	}
	if ref.Path == "" {
		return Reference{}, fmt.Errorf("no path; use %s:PATH", kind)
	}
	return ref, nil
}

// validTag says whether a tag of a layout can be chosen by a reference.
func validTag(tag string) bool {
	return tag != "" && len(tag) <= 128 && strings.Trim(tag, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == ""
}

func parseName(text string) (Reference, error) {
	if prefix, _, ok := strings.Cut(text, "://"); ok {
		return Reference{}, fmt.Errorf("a reference has no scheme; leave out \"%s://\"", prefix)
	}
	n, err := name.Parse(text)
	if err != nil {
		return Reference{}, err
	}
	return Reference{Kind: Registry, Host: n.Host, Repository: n.Repository, Tag: n.Tag, Digest: n.Digest}, nil
}

// String is the reference with all defaults filled in. Parse accepts it.
func (r Reference) String() string {
	switch r.Kind {
	case Stdin:
		return "-"
	case Registry:
		return name.Name{Host: r.Host, Repository: r.Repository, Tag: r.Tag, Digest: r.Digest}.String()
	}
	s := string(r.Kind) + ":" + r.Path
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	return s
}
