package record

import (
	"fmt"
	"path/filepath"
)

// StampsPath is the file with those of a tree, by its place in the record, and by when
// its layers were made: what was applied of others is none of theirs. It is a list in the
// order of the paths.
func (s *Sandbox) StampsPath(i int, t Tree) string {
	return filepath.Join(s.Path(), "applied", fmt.Sprintf("%d-%d", i, t.Since.UnixNano()))
}
