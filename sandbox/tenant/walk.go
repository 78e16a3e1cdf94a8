package tenant

import (
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// maxLinks are followed, as the kernel has it (MAXSYMLINKS).
const maxLinks = 40

// A place is where a path has led: a name in a directory that is held, as are those
// above it up to the workspace's.
type place struct {
	root  *os.File // not its own
	dirs  []*os.File
	names []string // of dirs, below root
	base  string   // "." for the directory itself
}

func (p *place) dir() *os.File {
	if n := len(p.dirs); n > 0 {
		return p.dirs[n-1]
	}
	return p.root
}

// closeBelow closes all but n directories.
func (p *place) closeBelow(n int) {
	descriptor.Close(p.dirs[n:]...)
	p.dirs, p.names = p.dirs[:n], p.names[:n]
}

func (p *place) close() { p.closeBelow(0) }

// maxDepth is how many directories one path may hold.
const maxDepth = 256

// walk goes where a path of the sandbox leads, and follows links to the end. The
// kernel has nothing for that: for it, a link is absolute to the host's root or to
// that of a lookup (RESOLVE_IN_ROOT), and here to one above the workspace.
func (w *Workspace) walk(name string) (_ *place, err error) {
	rest, err := w.parts(name)
	if err != nil {
		return nil, err
	}
	p := &place{root: w.dir, base: "."}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			if len(p.dirs) == 0 {
				return nil, ErrOutside
			}
			p.closeBelow(len(p.dirs) - 1)
			continue
		}
		target, found, err := p.step(part, len(rest) == 0)
		switch {
		case err != nil:
			return nil, err
		case found:
			return p, nil
		case target == "":
			continue
		}
		if links++; links > maxLinks {
			return nil, unix.ELOOP
		}
		if path.IsAbs(target) {
			if target, err = w.relative(target); err != nil {
				return nil, err
			}
			p.close()
		}
		rest = append(split(target), rest...)
	}
	return p, nil
}

// parts are the names of a path below the workspace; a relative one is.
func (w *Workspace) parts(name string) ([]string, error) {
	switch {
	case name == "":
		return nil, unix.ENOENT
	case strings.IndexByte(name, 0) >= 0:
		return nil, unix.EINVAL
	case len(name) >= unix.PathMax:
		return nil, unix.ENAMETOOLONG
	case !path.IsAbs(name):
		return split(name), nil
	}
	below, err := w.relative(name)
	return split(below), err
}

// relative is the part of an absolute path below the workspace. It is not cleaned: the
// meaning of ".." depends on links.
func (w *Workspace) relative(name string) (string, error) {
	rest := split(name)
	for _, part := range split(w.inside) {
		if len(rest) == 0 || rest[0] != part {
			return "", ErrOutside
		}
		rest = rest[1:]
	}
	return strings.Join(rest, "/"), nil
}

// split leaves out empty parts and the directory itself.
func split(name string) []string {
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return parts
}

// step goes one name further: into a directory; or it returns a link's target; or, for the
// last name, says that it is found, also if it does not exist.
func (p *place) step(part string, last bool) (target string, found bool, err error) {
	f, err := openAt(p.dir(), part, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err == unix.ENOENT && last {
		p.base = part
		return "", true, nil
	}
	if err != nil {
		return "", false, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd(f), &st); err != nil {
		f.Close()
		return "", false, err
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFLNK:
		defer f.Close()
		b := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd(f), "", b)
		if err == nil && n == 0 {
			err = unix.ENOENT
		}
		return string(b[:max(n, 0)]), false, err
	case last:
		p.base = part
		return "", true, f.Close()
	case kind != unix.S_IFDIR:
		f.Close()
		return "", false, unix.ENOTDIR
	case len(p.dirs) >= maxDepth:
		f.Close()
		return "", false, unix.ENAMETOOLONG
	}
	p.dirs, p.names = append(p.dirs, f), append(p.names, part)
	return "", false, nil
}
