package launcher

import (
	"os"
	"path/filepath"

	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// Has says whether a state root has a sandbox of this id, whole or in part, up or not. It
// does not check permissions.
func Has(root, id string) bool {
	if !filepath.IsLocal(id) || filepath.Base(id) != id || id == "." {
		return false
	}
	_, err := os.Lstat(filepath.Join((&Launcher{Roots: record.Roots{State: root}}).Sandboxes(), id))
	return err == nil
}
