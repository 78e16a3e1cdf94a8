package patch

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// preface writes the changes that a patch cannot have, and finds the inexpressible ones.
func (p *patch) preface() error {
	p.inexpressible = map[string]bool{}
	var last spec.Change // a directory, of which it is not known yet if it is empty
	replaced := ""       // a directory that a file replaces
	for c, err := range p.tree.Changes(layer.Options{Deleted: true}) {
		if err != nil {
			return err
		}
		if !p.begun {
			fmt.Fprintln(p.out, "# Owners, times, extended attributes, hard links, empty directories and special files cannot be in a patch.")
			p.begun = true
		}
		if !isBelow(c.Path, last.Path) {
			p.empty(last, replaced)
		}
		last = c
		if !isBelow(c.Path, replaced) {
			replaced = ""
		}
		if replaced == "" && c.Was == spec.TypeDirectory && c.Type != c.Was {
			replaced = c.Path
		}
		if err := p.noteLost(c, replaced); err != nil {
			return err
		}
	}
	p.empty(last, replaced)
	return nil
}

// empty names a directory that nothing in the patch tells of. One in a directory
// that is replaced would be in git's way.
func (p *patch) empty(c spec.Change, replaced string) {
	switch {
	case c.Type != spec.TypeDirectory:
	case c.Kind == spec.Deleted:
		p.note(c.Path, "the removal of an empty directory")
		if replaced != "" {
			p.inexpressible[replaced] = true
		}
	case c.Kind == spec.Created, c.Was != "" && c.Was != spec.TypeDirectory:
		p.note(c.Path, "an empty directory")
	}
}

// noteLost names the parts of a change that are not in the patch.
func (p *patch) noteLost(c spec.Change, replaced string) error {
	was, is := before(c), c.Type
	switch c.Kind {
	case spec.Created:
		was = ""
	case spec.Deleted:
		is = ""
	}
	if isSpecial(is) {
		p.note(c.Path, "a "+string(is))
	}
	if isSpecial(was) {
		p.note(c.Path, "the removal of a "+string(was))
	}
	if was != is && was != "" && is != "" && (was == spec.TypeDirectory || is == spec.TypeDirectory) {
		fmt.Fprintf(p.out, "# Only git apply can do this: %s, a %s instead of a %s\n", p.tree.name("", c.Path), is, was)
	}
	if err := p.replacement(c.Path, was, is, replaced); err != nil {
		return err
	}
	if is == "" {
		return nil
	}
	return p.attributes(c, was)
}

// replacement finds whether a replaced path can be in a patch: else its replacement cannot
// be there either.
func (p *patch) replacement(path string, was, is spec.FileType, replaced string) error {
	if was == "" || was == is || is == "" && replaced == "" {
		return nil
	}
	bad := isSpecial(was) || gitRefuses(path, was == spec.TypeSymlink)
	if was == spec.TypeFile {
		content, err := read(p.tree.OpenBelow, path)
		if err != nil {
			return erase.IgnoreMissing(err)
		}
		bad = bad || !content.fitsPatch(p.short)
	}
	switch {
	case !bad:
	case replaced != "":
		p.inexpressible[replaced] = true
	default:
		p.inexpressible[path] = true
	}
	return nil
}

// attributes names the lost attributes of a path.
func (p *patch) attributes(c spec.Change, was spec.FileType) error {
	note := p.note
	if c.Kind == spec.Created && c.Type != spec.TypeDirectory && p.refusal(c) != "" {
		note = p.comment // the list has the whole path, and one reason is enough
	}
	if c.HardLink != "" {
		note(c.Path, "its hard link to "+p.tree.name("", c.HardLink))
	}
	if len(c.Xattrs) > 0 {
		note(c.Path, "its extended attributes "+quoted(c.Xattrs))
	}
	mode := uint32(0o644) // that the tools give it
	if c.Type == spec.TypeDirectory || c.Mode&0o100 != 0 {
		mode = 0o755
	}
	if c.Kind == spec.Modified && was == c.Type {
		base, err := p.tree.Below(c.Path)
		if err != nil {
			return erase.IgnoreMissing(err)
		}
		removed := maps.Clone(base.Xattrs)
		maps.DeleteFunc(removed, func(name string, _ []byte) bool { _, stays := c.Xattrs[name]; return stays })
		if len(removed) > 0 {
			note(c.Path, "the removal of its extended attributes "+quoted(removed))
		}
		if base.UID != c.UID || base.GID != c.GID {
			note(c.Path, fmt.Sprintf("its owner %d:%d", c.UID, c.GID))
		}
		if c.Type == spec.TypeDirectory || gitMode(base) == gitMode(c) {
			mode = base.Mode
		}
	}
	if c.Mode != mode && (c.Type == spec.TypeFile || c.Type == spec.TypeDirectory) {
		note(c.Path, fmt.Sprintf("its mode %04o", c.Mode))
	}
	return nil
}

// quoted lists the names of attributes.
func quoted(xattrs map[string][]byte) string {
	names := make([]string, 0, len(xattrs))
	for name := range xattrs {
		names = append(names, quote(name))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// note writes a comment, and lists the path.
func (p *patch) note(path, what string) {
	p.comment(path, what)
	p.leftOut(path, what)
}

func (p *patch) comment(path, what string) {
	fmt.Fprintf(p.out, "# Not in this patch: %s, %s\n", p.tree.name("", path), what)
}

// isInexpressible reports whether a path is inexpressible, or a directory above it.
func (p *patch) isInexpressible(path string) bool {
	if len(p.inexpressible) == 0 {
		return false
	}
	for i, c := range path + "/" {
		if c == '/' && p.inexpressible[path[:i]] {
			return true
		}
	}
	return false
}

func isSpecial(t spec.FileType) bool {
	return t == spec.TypeFIFO || t == spec.TypeSocket || t == spec.TypeDevice
}

func isBelow(path, dir string) bool {
	return dir != "" && strings.HasPrefix(path, dir+"/")
}
