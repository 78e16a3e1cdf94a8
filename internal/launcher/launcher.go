// Package launcher makes sandboxes and carries out what is asked of them: it
// composes the root file system, the cgroup, the OCI specification and the
// first process from a configuration, starts commands through that process,
// each in a cgroup of its own, and removes it all again. It holds every
// privilege that takes; what it is told about sandboxes are configurations,
// never finished specifications, since whoever may hand in one of those is root.
//
// A sandbox outlives the process that made it. What there is of it is in the
// kernel and in its directory below the state root; a [Launcher] of any process
// of the same user finds it there by its id, and several may work on it at the
// same time.
//
// What it is not for: containers that others specified. Those go to
// internal/container directly, from the OCI commands.
package launcher

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/filtercache"
	"github.com/sandbox-runtime/sandbox-runtime/internal/idrange"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
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

// defaultData is where they keep what outlives a boot.
const defaultData = "/var/lib/sandbox-runtime"

// Dirs are where a launcher keeps what outlives it. Both are made when they are
// needed.
type Dirs struct {
	// State is for what ends with the boot: libcontainer's state in State/ID,
	// shared with the OCI commands, the launcher's own in directories that
	// begin with "@".
	State string
	// Data is for what is worth more than one boot or state root: the ranges of
	// user ids that are taken, which all launchers of a host should share,
	// compiled seccomp filters, and what sandboxes keep on disk.
	Data string
}

// A Launcher makes sandboxes below one state root. It may be used by several
// goroutines, and several processes may use the same root.
type Launcher struct {
	root, data string // absolute
	// host is what this host's cgroups can do, self this process's identity,
	// program the agent's: each is looked up once.
	host    func() (*cgroups.Host, error)
	self    func() (process.ID, error)
	program func() (*os.File, error)
	// filesProgram serves files inside.
	filesProgram func() (*os.File, error)
	// execs numbers the execs of this process, from after first on.
	execs atomic.Uint32
	first uint32
	// sweep starts a removal as a goroutine of sweeping. stopSweeping ends the removals
	// and waits for them.
	sweep        func(removal func(context.Context))
	stopSweeping func()
	sweeping     sync.WaitGroup

	// maxSnapshots bounds what one user other than root keeps on disk by snapshots alone.
	maxSnapshots int
	snapshotting turn

	groups groupPool
	// deadlines are of detached execs.
	deadlines deadlines
	handed    handed

	// mu guards what follows.
	mu sync.Mutex
	// live are the sandboxes that this process works with, by id.
	live map[string]*live
	// children are the numbers of the PID 1s that this process has to reap.
	children map[int]bool
	// tending are the goroutines that see to leaves, and that have the kernel do
	// its waiting early.
	tending sync.WaitGroup
}

// New returns a launcher for these directories.
func New(d Dirs) (*Launcher, error) {
	if d.State == "" {
		return nil, errors.New("no directory for the state of sandboxes: give one with --root")
	}
	if d.Data == "" { // a user without $XDG_DATA_HOME and $HOME
		return nil, errors.New("no directory for the data of sandboxes: give one with --data")
	}
	root, err := filepath.Abs(d.State)
	if err != nil {
		return nil, err
	}
	data, err := filepath.Abs(d.Data)
	if err != nil {
		return nil, err
	}
	l := &Launcher{
		root: root, data: data,
		host: sync.OnceValues(cgroups.Probe),
		self: sync.OnceValues(func() (process.ID, error) { return process.Of(os.Getpid()) }),
		// Sandboxes share it, 30 kB that each would have in memory. It is closed
		// with the program, or when nobody has the launcher any more.
		program:      sync.OnceValues(agent.Executable),
		filesProgram: sync.OnceValues(agent.FilesExecutable),
		live:         map[string]*live{}, children: map[int]bool{}, first: randomStart(),
		maxSnapshots: maxSnapshots,
		handed:       handed{memory: map[string]heldStore{}, every: lookForEnded},
	}
	l.execs.Store(l.first)
	l.sweep, l.stopSweeping = l.newSweeper()
	return l, nil
}

// Close removes what is kept ready for the next exec, for a process that is about
// to end: else whoever opens the sandbox next would. Sandboxes stay up. Nothing is
// to be under way.
func (l *Launcher) Close() {
	l.stopSweeping()
	l.deadlines.close()
	l.tending.Wait()
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.live))
	l.mu.Unlock()
	for _, v := range all {
		v.drop()
	}
	l.tending.Wait()
	l.closeHanded()
}

// randomStart keeps two launchers of one process from numbering alike.
func randomStart() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}

func (l *Launcher) sandboxes() string { return filepath.Join(l.root, "@sandboxes") }

// dir is the directory of a sandbox.
func (l *Launcher) dir(id string) string { return filepath.Join(l.sandboxes(), id) }

// private are the directories that no sandbox sees.
func (l *Launcher) private() []string {
	return []string{l.root, l.data, defaultRoot, defaultData, stage}
}

func (l *Launcher) ids() idrange.Ranges { return idrange.Ranges{Data: l.data, Root: l.root} }

func (l *Launcher) filters() filtercache.Cache { return filtercache.Cache{Data: l.data} }

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

// groupOf is the cgroup of a sandbox.
func (l *Launcher) groupOf(id string) (*cgroups.Group, error) {
	host, err := l.host()
	if err != nil {
		return nil, err
	}
	return host.Open(l.cgroupOf(id))
}

const idPrefix = "sb-"

// NewID is unique on the host and beyond: 130 random bits.
func newID() string { return idPrefix + strings.ToLower(rand.Text()) }

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
