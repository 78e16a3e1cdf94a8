// Package launcher creates, changes, removes and prunes sandboxes. It composes the root
// file system, the cgroup, the OCI specification and the first process from a
// configuration, starts commands through that process, each in a cgroup of its own, and
// removes all of that again. It holds all privilege. It takes configurations, never
// finished specifications: a client that hands in a specification has the rights of root.
//
// A sandbox outlives the process that made it. Its parts are in the kernel and in its
// directory below the state root. A [Launcher] of any process of the same user finds it
// there by its id, and several launchers may work on it at a time.
//
// The package is not for containers that others specified: the OCI commands use
// internal/container directly.
package launcher

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/filtercache"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/handed"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/idrange"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/trash"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/languages"
)

// Dirs are the directories of a launcher. Both are made when they are needed.
type Dirs = record.Roots

// A Launcher makes sandboxes below one state root. It may be used by several
// goroutines, and several processes may use the same root.
type Launcher struct {
	record.Roots
	// host describes the cgroups of this host, self identifies this process, and program is the
	// agent. Each is looked up once.
	host    func() (*cgroups.Host, error)
	self    func() (process.ID, error)
	program func() (*os.File, error)
	// filesProgram is the program that serves the files of a sandbox.
	filesProgram func() (*os.File, error)
	sweeper      *trash.Sweeper
	trash        *trash.Can
	layers       *overlay.Keeper

	// maxSnapshots bounds the snapshots, and their images, of one user other than root.
	maxSnapshots int
	// leastFree is the number of sandboxes for which a pool leaves room on the host.
	leastFree int
	// claimAnswer is how long PID 1 of a blank may take to answer a claim.
	claimAnswer  time.Duration
	snapshotting turn

	parts    *part.Parts
	ids      idrange.Ranges
	filters  filtercache.Cache
	sessions *jobs.Sessions
	handed   *handed.Stores
	images   *images.Keeper

	// blanks is nil in a launcher without a pool.
	blanks     *blanks
	hostMounts rootfs.HostMounts
	packages   conffiles.Reader
	absences   languages.Absences

	// aside is nil in a launcher that finishes each removal before it answers.
	aside *finisher

	children process.Children
	// tending counts the goroutines that remove leaves, finish removals, remove stale blanks, or make
	// the kernel do a slow step early.
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
	state, stateErr := record.ResolveState(d.State)
	data, dataErr := hostpaths.Absolute(d.Data)
	if err := errors.Join(stateErr, dataErr); err != nil {
		return nil, err
	}
	d.State, d.Data = state, data
	host, ids := sync.OnceValues(cgroups.Probe), idrange.Ranges{Data: data, Root: state}
	l := &Launcher{
		Roots: d, host: host, ids: ids,
		filters: filtercache.Cache{Data: data}, packages: conffiles.Reader{Keep: packageFile{data}},
		self: sync.OnceValues(func() (process.ID, error) { return process.Of(os.Getpid()) }),
		// All sandboxes share one file of the agent, which saves each 30 kB of memory. The end of
		// the process closes the file, or the garbage collection of the launcher.
		program:      sync.OnceValues(agent.Executable),
		filesProgram: sync.OnceValues(agent.FilesExecutable),
		maxSnapshots: maxSnapshots,
		leastFree:    leastFree,
		claimAnswer:  claimAnswerTime,
		handed:       handed.New(d),
		images:       images.New(filepath.Join(data, "images")),
	}
	l.sweeper = trash.NewSweeper()
	l.trash = trash.New(data, l.sweeper)
	l.parts = part.New(part.Config{
		Roots: d, Host: host, IDs: ids, Handed: l.handed, Trash: l.trash, Images: l.images, Self: l.self, Program: l.program,
		Filters: &l.filters, Packages: &l.packages, Copies: l.openCopies, Absences: &l.absences, Children: &l.children, Tending: &l.tending,
	})
	l.layers = overlay.NewKeeper(l.Roots, l.self, layerImages{l.images}, l.sweeper, l.trash, &l.tending)
	l.sessions = jobs.New(jobs.Config{
		Roots: l.Roots, Self: l.self, OpenGroup: l.parts.Group, FilesProgram: l.filesProgram,
		Layers: l.layers, Tending: &l.tending, Traffic: l.networks().Traffic, Refusals: l.networks().Refusals,
		TellsFailures: l.networks().TellsFailures,
		Alone: func(ctx context.Context, v *jobs.Session, f func() error) error {
			return (&Sandbox{launcher: l, session: v}).withLock(ctx, f)
		},
	})
	return l, nil
}

// ImageKeeper keeps the images of this launcher's users.
func (l *Launcher) ImageKeeper() *images.Keeper { return l.images }

// Close removes the blanks, and waits for removals that are not finished. Then it removes the
// connections and cgroups that are ready for the next exec. Otherwise the next process that opens the
// sandbox would have to remove the cgroups. Sandboxes stay up. No call may be under way.
func (l *Launcher) Close() {
	l.StopPool()
	l.tending.Wait() // removals give files to the sweeper
	l.sweeper.Stop()
	l.sessions.Close()
	l.handed.Close()
	l.images.Close()
	l.hostMounts.Close()
}

const idPrefix = "sb-"

// newID returns a globally unique id: it has 130 random bits.
func newID() string { return idPrefix + strings.ToLower(rand.Text()) }
