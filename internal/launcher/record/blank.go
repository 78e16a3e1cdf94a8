package record

import (
	"os"
	"path/filepath"
)

// blankMark is the mark of a blank sandbox with this directory. The mark has the blank's id in its name: a claim gives
// the directory another name, and the mark then says nothing.
func blankMark(dir string) string { return filepath.Join(dir, "blank-"+filepath.Base(dir)) }

// MarkBlank marks the directory of a blank. The caller must hold the directory.
func MarkBlank(dir string) error { return os.WriteFile(blankMark(dir), nil, 0o600) }

// IsBlank says that the directory is of a blank that no request has claimed. The launcher of the blank may
// have ended.
func IsBlank(dir string) bool {
	_, err := os.Lstat(blankMark(dir))
	return err == nil && !hasRecord(dir)
}
