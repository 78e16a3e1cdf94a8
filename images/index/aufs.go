package index

import (
	"archive/tar"
	"strings"
)

const (
	aufs      = "/" + whiteout + whiteout // begins the names of AUFS's own files in the root of a layer
	aufsLinks = aufs + "plnk/"            // has files that are targets of hard links
)

// isAUFS says that an entry is of AUFS's own. Docker wrote such entries before 1.8, and still reads them.
func isAUFS(name string) bool { return strings.HasPrefix(name, aufs) && name != "/"+opaque }

// addAUFS leaves an entry out of the tree. Hard links of the layer can name a regular file.
func (a *archive) addAUFS(name string, h *tar.Header) error {
	if h.Typeflag != tar.TypeReg || !strings.HasPrefix(name, aufsLinks) {
		return nil
	}
	if len(a.linked) >= a.limits.Files {
		return &LimitError{Limit: "files", Max: int64(a.limits.Files)}
	}
	i, err := a.inode(h)
	if err != nil {
		return err
	}
	if a.linked == nil {
		a.linked = map[string]*inode{}
	}
	a.linked[strings.Clone(name)] = i
	return a.count(len(name))
}
