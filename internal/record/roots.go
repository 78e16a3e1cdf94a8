package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
)

// Roots are the two directories of a launcher, both absolute.
type Roots struct {
	// State is the state root, data the data directory.
	State, Data string
}

// Images of sandboxes' stores are <data>/stores/HASH-ID@NUMBER.img, HASH being
// that of the state root: whoever knows the id finds them, and those whose sandbox
// is gone are found by their names. The number is another one each time, so that
// an image can outlive a sandbox whose name is used again: who needs one for
// longer gives it a second name (link(2)), and it loses its first one only.
const (
	StoresName = "stores"
	BlanksName = "blank"
	ImageEnd   = ".img"
)

// ImagePath is where an image lies, of the name that a record has.
func (l Roots) ImagePath(name string) string { return filepath.Join(l.Data, StoresName, name) }

// ImagePrefix begins the names of a sandbox's images: "@" is in no id.
func (l Roots) ImagePrefix(id string) string { return l.CgroupPrefix() + id + "@" }

// Images are the names of this state root's images.
func (l Roots) Images() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(l.Data, StoresName))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) { // there can be none
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), l.CgroupPrefix()) && strings.HasSuffix(e.Name(), ImageEnd) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// ImageOwners are the ids of the sandboxes whose images there are.
func (l Roots) ImageOwners() ([]string, error) {
	names, err := l.Images()
	var ids []string
	for _, name := range names {
		id, _, found := strings.Cut(strings.TrimPrefix(name, l.CgroupPrefix()), "@")
		if found && IsName(id) {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// Stage is where every sandbox's root is prepared, in a mount namespace of the
// sandbox's own: on the host it is an empty directory that only root may
// enter. It has one place whatever the state root is, because the sandbox's
// init, an unprivileged id of the host by then, has to be able to walk there.
const Stage = "/run/sandbox-runtime.stage"

// defaultRoot is where other launchers of this host probably keep their state.
const defaultRoot = "/run/sandbox-runtime"

// CgroupParent holds the cgroups of all sandboxes.
const CgroupParent = "/sandbox-runtime"

// defaultData is where they keep what outlives a boot.
const defaultData = "/var/lib/sandbox-runtime"

func (l Roots) Sandboxes() string { return filepath.Join(l.State, "@sandboxes") }

// Dir is the directory of a sandbox.
func (l Roots) Dir(id string) string { return filepath.Join(l.Sandboxes(), id) }

// Private are the directories that no sandbox sees.
func (l Roots) Private() []string {
	return []string{l.State, l.Data, defaultRoot, defaultData, Stage}
}

// CgroupPrefix begins the names of this root's cgroups, which tells them from
// those of other roots on the host.
func (l Roots) CgroupPrefix() string {
	sum := sha256.Sum256([]byte(l.State))
	return hex.EncodeToString(sum[:6]) + "-"
}

// CgroupOf is the path of a sandbox's cgroup below each hierarchy's root.
func (l Roots) CgroupOf(id string) string {
	return CgroupParent + "/" + l.CgroupPrefix() + id
}

// MaxName bounds a name so that what is named after it, with a prefix, still is
// a file's name.
const MaxName = 128

// IsName holds for what containers may be called, the letters, digits and "_+-."
// of libcontainer's ids, but that a name does not begin as a flag or a hidden
// file does.
func IsName(s string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-."
	return s != "" && !strings.ContainsRune("+-.", rune(s[0])) && len(s) <= MaxName && strings.Trim(s, allowed) == ""
}

// CheckRoot refuses a state root that anybody but root and this user may change. One
// that is not there is no error. [readRecord] checks the file that it has opened, too.
func (l Roots) CheckRoot() error { return statedir.Check(l.Sandboxes()) }

// A snapshot is the files of a sandbox as they once were: layers that nobody writes
// to any more, in images that have a name of its own, as long as it is there. It is a
// directory <data>/snapshots/HASH-NAME, made under another name.
const SnapshotsName = "snapshots"

func (l Roots) SnapshotDir(name string) string {
	return filepath.Join(l.Data, SnapshotsName, l.CgroupPrefix()+name)
}
