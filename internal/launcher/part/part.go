// Package part knows the kinds of objects that a sandbox has outside its directory: its cgroup and its container, its
// network, the image of its files, its range of user ids and its use of an image. Each kind is a file of this package.
//
// The kinds stand in one list. The search for sandboxes without a directory and the removal of a sandbox are loops over
// this list.
package part

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/filtercache"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/handed"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/idrange"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/trash"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/networks"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/languages"
)

// A kind is a kind of object that sandboxes have outside their directories.
type kind interface {
	// find returns the ids with which the sandboxes were made that have an object of this kind. A kind whose objects are
	// found in another way, or which follow another kind, finds none.
	find() (ids []string, err error)
	// release removes the objects of a sandbox. It does nothing if there are none.
	release(ctx context.Context, r *Remains) error
}

// Config is the launcher's share in the parts of its sandboxes.
type Config struct {
	record.Roots
	Host   func() (*cgroups.Host, error)
	IDs    idrange.Ranges
	Handed *handed.Stores
	Trash  *trash.Can
	Images *images.Keeper
	// Self identifies the launcher. Program is the agent.
	Self    func() (process.ID, error)
	Program func() (*os.File, error)
	Filters *filtercache.Cache
	// Packages, Copies and Absences are about the host's files: see [rootfs.Config] and [rootfs.Peer.FindLanguages].
	Packages *conffiles.Reader
	Copies   func() (*os.File, error)
	Absences *languages.Absences
	Children *process.Children
	// Tending counts the goroutines that go on after a call.
	Tending *sync.WaitGroup
}

// ErrContainer refuses the name of a container.
var ErrContainer = fmt.Errorf("%w, as a container", fault.ErrExists)

// Parts are the parts of all sandboxes of a state root.
type Parts struct {
	Config
	// kinds are in the order of their release: at first all processes of the sandbox end. No other sandbox gets the user
	// ids of a sandbox before its files are gone.
	kinds []kind
}

// New returns the parts of the sandboxes of a launcher.
func New(c Config) *Parts {
	p := &Parts{Config: c}
	p.kinds = []kind{groups{p}, network{networks.Networks{Roots: c.Roots}}, stores{p}, ids{p}, imageUses{p}}
	return p
}

// Remains are the parts of a sandbox that is being removed. The caller holds its directory.
type Remains struct {
	ID  string
	Dir string
	// Record is nil if it is missing or damaged.
	Record *record.Record
	// KeepContainer says that a container with the id is not the sandbox's.
	KeepContainer bool
	Group         *cgroups.Group
	names         record.Names
	// moved says that another sandbox has the objects with these names: a killed claim leaves the empty directory of its
	// blank.
	moved bool
	// store is open if a client may hold it. PID 1 leads to the store: once PID 1 has ended, nothing
	// is handed out any more.
	store *os.File
}

// Open opens the parts of a sandbox that is removed. Its removal must be noted before: the files of the sandbox cannot
// be used any more. r is the record, or nil if it is missing or damaged.
func (p *Parts) Open(id, dir string, r *record.Record) (*Remains, error) {
	if err := p.dropDamagedNames(id, dir); err != nil {
		return nil, err
	}
	x := &Remains{ID: id, Dir: dir, Record: r}
	host, err := p.Host()
	if err != nil {
		return nil, err
	}
	if x.names, x.moved, err = p.names(host, id); err != nil {
		return nil, err
	}
	if x.Group, err = host.Open(x.names.CgroupPath()); err != nil {
		return nil, err
	}
	if r != nil {
		x.store = p.Handed.TakeOpen(id, dir, *r)
		p.abandonImage(*r)
	}
	return x, nil
}

// Release removes all parts of a sandbox. After an error a second call removes the rest.
func (p *Parts) Release(ctx context.Context, r *Remains) error {
	for _, k := range p.kinds {
		if err := k.release(ctx, r); err != nil {
			return err
		}
	}
	return nil
}
