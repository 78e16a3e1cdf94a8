package record

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// NamesFile is the file with the names, in a sandbox's directory. It is written before
// anything gets one of these names.
const NamesFile = "names.json"

// Names are the names of a sandbox's objects outside its directory. A name stays as long as
// the object does, also when the sandbox gets another id.
type Names struct {
	// Made is the id with which the sandbox was made. The names of its images and of its
	// range of user ids have this id in them.
	Made string `json:"made"`
	// Cgroup is below CgroupParent.
	Cgroup string `json:"cgroup"`
}

// nameMark ends the id in a name. No id has this character.
const nameMark = "@"

// NewNames makes up names for a new sandbox. They lead to the sandbox's id, in case the
// directory is lost.
func (l Roots) NewNames(id string) Names {
	return Names{Made: id, Cgroup: l.CgroupPrefix() + id + nameMark + strings.ToLower(rand.Text()[:8])}
}

// Write writes the names to the sandbox's directory. The caller must hold the directory.
func (n Names) Write(dir string) error { return statedir.ReplaceJSON(filepath.Join(dir, NamesFile), n) }

// NamesOf are the names of a sandbox. Without a file they follow from the id: such a sandbox
// was made by an earlier release, or there is none. known says that there is a file.
func (l Roots) NamesOf(id string) (n Names, known bool, err error) {
	path := filepath.Join(l.Dir(id), NamesFile)
	data, err := statedir.ReadOwn(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Names{Made: id, Cgroup: l.CgroupPrefix() + id}, false, nil
	}
	if err != nil {
		return n, false, err
	}
	if err := json.Unmarshal(data, &n); err != nil {
		return n, false, fmt.Errorf("read %s: %w; remove the sandbox with down", path, err)
	}
	if made, ours := l.CgroupID(n.Cgroup); !ours || made != n.Made || strings.Contains(n.Cgroup, "/") {
		return n, false, fmt.Errorf("%s: %q is no cgroup of the sandbox that was made as %q; remove the sandbox with down", path, n.Cgroup, n.Made)
	}
	return n, true, nil
}

// CgroupPath is the path of the cgroup below the root of each hierarchy.
func (n Names) CgroupPath() string { return CgroupParent + "/" + n.Cgroup }

// CgroupID is the id with which the sandbox of a cgroup, or of an image, was made. ours says
// that the cgroup or the image is of this state root.
func (l Roots) CgroupID(name string) (id string, ours bool) {
	id, ours = strings.CutPrefix(name, l.CgroupPrefix())
	id, _, _ = strings.Cut(id, nameMark)
	return id, ours && IsName(id)
}
