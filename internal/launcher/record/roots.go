package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Roots are the two directories of a launcher, both absolute once it has started, and the choice of
// addresses for the network of the state root.
type Roots struct {
	// State is for files that end with the boot: libcontainer's state in State/ID, shared
	// with the OCI commands, and the launcher's own directories, which begin with "@".
	State string
	// Data is for files that outlive a boot or a state root: the taken ranges of user ids,
	// which all launchers of a host should share, compiled seccomp filters, and the writes
	// of sandboxes on disk.
	Data string
	// NetworkRange is for [router.Router].
	NetworkRange netip.Prefix
}

// ResolveState returns the absolute path of a state root without symbolic links. The names of a sandbox's objects
// begin with a hash of this path, so each state root must have only one path. The last parts of the path may be
// missing.
func ResolveState(dir string) (string, error) {
	path, err := hostpaths.Absolute(dir)
	if err != nil {
		return "", err
	}
	resolved, err := filepath.EvalSymlinks(path)
	switch {
	case err == nil:
		return resolved, nil
	case errors.Is(err, fs.ErrPermission): // the use of this directory gets an error that names the way out
		return path, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("state root %s: %w; name another directory with --root", path, err)
	}
	parent, err := ResolveState(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

// The image of a sandbox's store is <data>/stores/HASH-ID@RANDOM.img; HASH is of the state
// root. So the id leads to the image, and the name of an image leads to its sandbox. The
// random part lets an image outlive a sandbox whose id is used again: a snapshot gives the
// image a second name (link(2)), and the removal of the sandbox takes the first one.
const (
	StoresName = "stores"
	BlanksName = "blank"
	ImageEnd   = ".img"
)

// ImagePath is the path of an image by its name in a record.
func (l Roots) ImagePath(name string) string { return filepath.Join(l.Data, StoresName, name) }

// ImagePrefix begins the names of a sandbox's images: "@" is in no id.
func (l Roots) ImagePrefix(id string) string { return l.CgroupPrefix() + id + nameMark }

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

// Stage is the directory on which each sandbox's root is mounted, in a mount namespace of the
// sandbox's own. On the host Stage is an empty directory that only root may enter. Its path
// does not depend on the state root: the sandbox's init, an unprivileged id of the host by
// then, has to be able to walk there.
const Stage = "/run/sandbox-runtime.stage"

// defaultRoot is the state root of most launchers.
const defaultRoot = "/run/sandbox-runtime"

// CgroupParent holds the cgroups of all sandboxes.
const CgroupParent = "/sandbox-runtime"

// defaultData is the data directory of most launchers.
const defaultData = "/var/lib/sandbox-runtime"

// Sandboxes is the directory of all sandbox directories.
func (l Roots) Sandboxes() string { return filepath.Join(l.State, "@sandboxes") }

// Dir is the directory of a sandbox.
func (l Roots) Dir(id string) string { return filepath.Join(l.Sandboxes(), id) }

// Private are the directories that no sandbox sees.
func (l Roots) Private() []string {
	return []string{l.State, l.Data, defaultRoot, defaultData, Stage}
}

// CgroupPrefix begins the names of this state root's cgroups, and tells them from those of
// other state roots of the host.
func (l Roots) CgroupPrefix() string {
	sum := sha256.Sum256([]byte(l.State))
	return hex.EncodeToString(sum[:6]) + "-"
}

// MaxName bounds a name.
const MaxName = spec.MaxName

// IsName says whether s can name a sandbox.
func IsName(s string) bool { return spec.CheckName(s) == nil }

// CheckRoot refuses a state root that other users than root and this user may change. A
// missing one is no error. [Read] checks the opened file, too.
func (l Roots) CheckRoot() error { return statedir.Check(l.Sandboxes()) }

// SnapshotsName is the directory of snapshots in the data directory. A snapshot is the files
// of a sandbox at one moment: layers that are not written to any more, in images with a
// second name. Its directory is <data>/snapshots/HASH-NAME, and has another name until the
// snapshot is whole.
const SnapshotsName = "snapshots"

// SnapshotDir is the directory of a snapshot.
func (l Roots) SnapshotDir(name string) string {
	return filepath.Join(l.Data, SnapshotsName, l.CgroupPrefix()+name)
}
