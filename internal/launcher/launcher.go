// Package launcher makes sandboxes: it composes the root file system, the
// cgroup, the OCI specification and the first process from a configuration,
// runs a command inside, and removes it all again. It holds every privilege
// that takes; what it is told about sandboxes are configurations, never
// finished specifications, since whoever may hand in one of those is root.
//
// What it is not for: containers that others specified. Those go to
// internal/container directly, from the OCI commands.
package launcher

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strings"
)

// stage is where every sandbox's root is prepared, in a mount namespace of the
// sandbox's own: on the host it is an empty directory that only root may
// enter. It has one place whatever the state root is, because the sandbox's
// init, an unprivileged id of the host by then, has to be able to walk there.
const stage = "/run/sandbox-runtime.stage"

// defaultRoot is where other launchers of this host probably keep their state.
const defaultRoot = "/run/sandbox-runtime"

// cgroupParent holds the cgroups of all sandboxes.
const cgroupParent = "/sandbox-runtime"

// A Launcher makes sandboxes below one state root. It may be used by several
// goroutines, and several processes may use the same root.
type Launcher struct {
	// root is the state root, shared with the OCI commands: libcontainer's
	// state in root/ID, the launcher's own in directories that begin with "@".
	root string
}

// New returns a launcher for a state root, which is made when it is needed.
func New(root string) (*Launcher, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	return &Launcher{root: root}, nil
}

func (l *Launcher) sandboxes() string { return filepath.Join(l.root, "@sandboxes") }

func (l *Launcher) ids() idRanges { return idRanges{dir: filepath.Join(l.root, "@ids")} }

// cgroupPrefix begins the names of this root's cgroups, which tells them from
// those of other roots on the host.
func (l *Launcher) cgroupPrefix() string {
	sum := sha256.Sum256([]byte(l.root))
	return hex.EncodeToString(sum[:6]) + "-"
}

// cgroupOf is the path of a sandbox's cgroup below each hierarchy's root.
func (l *Launcher) cgroupOf(id string) string {
	return cgroupParent + "/" + l.cgroupPrefix() + id
}

const idPrefix = "sb-"

// newID is unique on the host and beyond: 130 random bits.
func newID() string { return idPrefix + strings.ToLower(rand.Text()) }

// isID tells an id that newID may have made from what a damaged file says.
func isID(s string) bool {
	random, ok := strings.CutPrefix(s, idPrefix)
	return ok && len(random) == len(rand.Text()) && strings.Trim(random, "abcdefghijklmnopqrstuvwxyz234567") == ""
}
