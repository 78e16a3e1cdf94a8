package launcher

import (
	"path/filepath"

	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
)

// Has says whether a state root has a sandbox of this id, whole or in part, up or not. It
// does not check permissions.
func Has(root, id string) bool {
	if !filepath.IsLocal(id) || filepath.Base(id) != id || id == "." {
		return false
	}
	return statedir.Exists(record.Roots{State: root}.Dir(id))
}
