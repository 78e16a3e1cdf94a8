package launcher

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

// roots are the two directories of a launcher, both absolute.
type roots struct {
	// root is the state root, data the data directory.
	root, data string
}

// Images of sandboxes' stores are <data>/stores/HASH-ID@NUMBER.img, HASH being
// that of the state root: whoever knows the id finds them, and those whose sandbox
// is gone are found by their names. The number is another one each time, so that
// an image can outlive a sandbox whose name is used again: who needs one for
// longer gives it a second name (link(2)), and it loses its first one only.
const (
	storesName = "stores"
	blanksName = "blank"
	imageEnd   = ".img"
)

// imagePath is where an image lies, of the name that a record has.
func (l roots) imagePath(name string) string { return filepath.Join(l.data, storesName, name) }

// imagePrefix begins the names of a sandbox's images: "@" is in no id.
func (l roots) imagePrefix(id string) string { return l.cgroupPrefix() + id + "@" }

// images are the names of this state root's images.
func (l roots) images() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(l.data, storesName))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) { // there can be none
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), l.cgroupPrefix()) && strings.HasSuffix(e.Name(), imageEnd) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// imageOwners are the ids of the sandboxes whose images there are.
func (l roots) imageOwners() ([]string, error) {
	names, err := l.images()
	var ids []string
	for _, name := range names {
		id, _, found := strings.Cut(strings.TrimPrefix(name, l.cgroupPrefix()), "@")
		if found && isName(id) {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// stage is where every sandbox's root is prepared, in a mount namespace of the
// sandbox's own: on the host it is an empty directory that only root may
// enter. It has one place whatever the state root is, because the sandbox's
// init, an unprivileged id of the host by then, has to be able to walk there.
const stage = "/run/sandbox-runtime.stage"

// defaultRoot is where other launchers of this host probably keep their state.
const defaultRoot = "/run/sandbox-runtime"

// cgroupParent holds the cgroups of all sandboxes.
const cgroupParent = "/sandbox-runtime"

// defaultData is where they keep what outlives a boot.
const defaultData = "/var/lib/sandbox-runtime"

func (l roots) sandboxes() string { return filepath.Join(l.root, "@sandboxes") }

// dir is the directory of a sandbox.
func (l roots) dir(id string) string { return filepath.Join(l.sandboxes(), id) }

// private are the directories that no sandbox sees.
func (l roots) private() []string {
	return []string{l.root, l.data, defaultRoot, defaultData, stage}
}

// cgroupPrefix begins the names of this root's cgroups, which tells them from
// those of other roots on the host.
func (l roots) cgroupPrefix() string {
	sum := sha256.Sum256([]byte(l.root))
	return hex.EncodeToString(sum[:6]) + "-"
}

// cgroupOf is the path of a sandbox's cgroup below each hierarchy's root.
func (l roots) cgroupOf(id string) string {
	return cgroupParent + "/" + l.cgroupPrefix() + id
}

// maxName bounds a name so that what is named after it, with a prefix, still is
// a file's name.
const maxName = 128

// isName holds for what containers may be called, the letters, digits and "_+-."
// of libcontainer's ids, but that a name does not begin as a flag or a hidden
// file does.
func isName(s string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-."
	return s != "" && !strings.ContainsRune("+-.", rune(s[0])) && len(s) <= maxName && strings.Trim(s, allowed) == ""
}

// checkRoot refuses a state root that anybody but root and this user may change. One
// that is not there is no error. [readRecord] checks the file that it has opened, too.
func (l roots) checkRoot() error { return statedir.Check(l.sandboxes()) }

// A snapshot is the files of a sandbox as they once were: layers that nobody writes
// to any more, in images that have a name of its own, as long as it is there. It is a
// directory <data>/snapshots/HASH-NAME, made under another name.
const snapshotsName = "snapshots"

func (l roots) snapshotDir(name string) string {
	return filepath.Join(l.data, snapshotsName, l.cgroupPrefix()+name)
}
