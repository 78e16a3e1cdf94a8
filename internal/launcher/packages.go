package launcher

import (
	"os"
	"path/filepath"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// A packageFile keeps the list of configuration files of the host's packages in the data directory:
// [conffiles.Keeper].
type packageFile struct{ data string }

const packagesName = "packages"

// Load reads the list.
func (f packageFile) Load() ([]byte, error) {
	dir, err := statedir.OpenData(f.data, packagesName)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return statedir.ReadOwn(filepath.Join(dir.Name(), "conffiles"))
}

// Store replaces the list.
func (f packageFile) Store(text []byte) error {
	dir, err := statedir.OpenData(f.data, packagesName)
	if err != nil {
		return err
	}
	defer dir.Close()
	return draft.File{Path: filepath.Join(dir.Name(), "conffiles")}.WriteBytes(text)
}

// copiesName is a directory of the state root. No container has a name with "@".
const copiesName = "@etc"

// openCopies opens the directory with copies of files of the host's /etc.
func (l *Launcher) openCopies() (*os.File, error) { return statedir.OpenData(l.State, copiesName) }
