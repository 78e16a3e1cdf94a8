package record

import (
	"fmt"
	"path/filepath"
)

// StampsPath is the file with the stamps of a tree. Its name has the tree's place in the
// record and the age of its layers, so that stamps of older layers are not used. The file
// is a list in the order of the paths.
func (s *Sandbox) StampsPath(i int, t Tree) string {
	return filepath.Join(s.Path(), "applied", fmt.Sprintf("%d-%d", i, t.Since.UnixNano()))
}
