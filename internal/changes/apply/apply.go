package apply

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// reservedPrefix begins the names that the runtime keeps for itself in the root of a tree. Below
// the root it keeps only the names of staging directories, which begin with journalPrefix.
const reservedPrefix = ".sandbox-runtime-"

// An Owner is whose a file is.
type Owner struct{ UID, GID uint32 }

// Options choose the changes that are applied, and how. The zero value applies all
// harmless changes, and a present path that would be replaced is a conflict.
type Options struct {
	// Paths are those that are applied, with all below them and with the
	// directories above them that are missing. None: all.
	Paths []string

	// Hold returns a reason to leave a change out, or nothing. It is asked about each
	// change of the layers, parents first, also if Paths choose others. All below a new or
	// replaced directory that is left out is left out, too. Nil: all changes are applied.
	// See [Plan.Held].
	Hold func(spec.Change) string

	// Owner of new files in the tree; present files keep their own. Nil: the caller, or if
	// that is root the owner of the tree's root.
	Owner *Owner
	// Owners, if it is not nil, is asked instead for each entry, new or not.
	Owners func(spec.Change) Owner

	// Since is the begin of the sandbox: the sandbox has not seen later changes of the
	// tree, by their ctime.
	Since time.Time
	// Stamps are of paths as earlier applies have left them: that is no change.
	Stamps map[string]layer.Stamp
	// Source names the stack. Recover tells the stamps of an apply that was
	// killed under this name.
	Source string

	// Setuid carries over setuid and setgid bits and file capabilities.
	Setuid bool
	// Devices carries over device nodes.
	Devices bool
	// Overwrite also applies changes with conflicts.
	Overwrite bool
	// OverwriteOnly are the paths whose conflicts New leaves out. A change of the tree after New is a conflict there, too.
	OverwriteOnly map[string]bool

	// View says that the tree is the view that a sandbox has of a tree in its store: see
	// [Recover]. Such an apply is not durable, since no sandbox outlives a crash of the host.
	View bool

	// Verify, if it is not nil, is called by Commit when all content was read and
	// nothing of the tree was changed. An error of it ends the Commit.
	Verify func(context.Context) error
	// Untie, if it is not nil, is called after Verify. directories says that a directory of the tree is to go. An error
	// of it ends the Commit.
	Untie func(ctx context.Context, directories bool) error
}

// A ConflictError is Commit's error if the tree has changed since the sandbox saw it.
type ConflictError struct {
	Conflicts []spec.Unapplied
	// Applied are the paths that were applied nevertheless: others changed the new
	// entries before the apply could be taken back. Mostly there are none.
	Applied []string
	// Kept are the new paths of the host's own entries that could not go back. Others have taken
	// their places.
	Kept []string
}

func (e *ConflictError) Error() string {
	first := e.Conflicts[0]
	more := ""
	if n := len(e.Conflicts) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	done := "nothing was applied"
	if len(e.Applied) > 0 {
		done = fmt.Sprintf("all was taken back but for %q, which has changed since", e.Applied)
	}
	if len(e.Kept) > 0 {
		done += fmt.Sprintf(", and files of the host that could not go back are kept as %q", e.Kept)
	}
	return fmt.Sprintf("%q %s%s: %s; choose other paths, or overwrite it", first.Path, first.Reason, more, done)
}

// A Plan is the plan of an apply. It can be carried out once.
type Plan struct {
	stack  *layer.Stack
	target *os.File
	o      Options
	owner  Owner

	changes   []spec.Change // in the order of comparePaths
	held      []spec.Unapplied
	conflicts []spec.Unapplied
	refused   []spec.Unapplied

	seen witness
	// parents are the directories of the steps. The value is true for a directory that
	// nobody has changed since the sandbox saw it or an earlier apply left it.
	parents map[string]bool

	// shared are the inodes of removed names with other names. kin are those other
	// names, as far as earlier applies left them.
	shared map[inode]bool
	kin    []place

	tree       *tree
	steps      steps
	comparison comparison

	journal *journal   // of Commit
	cleaned chan error // of the removal after Commit
}

// New plans the apply of a stack's changes to a tree, and writes nothing. The
// stack and the tree's directory stay the caller's, and are in use until Close.
func New(s *layer.Stack, target *os.File, o Options) (*Plan, error) {
	p := &Plan{
		stack: s, target: target, o: o, tree: newTree(target),
		parents: map[string]bool{}, shared: map[inode]bool{},
	}
	defer p.tree.forget()
	root, err := statFD(p.tree.root)
	if err != nil {
		return nil, fmt.Errorf("apply to %s: %w", target.Name(), err)
	}
	if !root.dir() {
		return nil, fmt.Errorf("apply to %s: it is not a directory", target.Name())
	}
	p.owner = Owner{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	if o.Owner != nil {
		p.owner = *o.Owner
	} else if p.owner.UID == 0 {
		p.owner = Owner{UID: root.UID, GID: root.GID}
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(p.tree.root, &fs); err != nil {
		return nil, fmt.Errorf("apply to %s: %w", target.Name(), err)
	}
	p.steps = steps{tree: p.tree, overlay: fs.Type == unix.OVERLAYFS_SUPER_MAGIC, overwrite: o.Overwrite, firsts: map[string]int32{}}
	p.seen = witness{
		tree: p.tree, overlay: p.steps.overlay, since: o.Since.UnixNano(), stamps: o.Stamps,
		replaced: map[string]bool{}, unseen: map[string]bool{},
	}
	p.comparison = comparison{s, p.tree, &p.o}
	if err := p.choose(); err != nil {
		return nil, err
	}
	if err := p.compile(); err != nil {
		return nil, fmt.Errorf("apply to %s: %w", target.Name(), err)
	}
	return p, nil
}

// Changes are those that the plan is about. After Close the list is the caller's.
func (p *Plan) Changes() []spec.Change { return p.changes }

// Conflicts are the paths at which the tree has changed since the sandbox saw it. They keep
// the plan from being committed, unless it overwrites.
func (p *Plan) Conflicts() []spec.Unapplied { return p.conflicts }

// Refused are the parts of the changes that are not carried over.
func (p *Plan) Refused() []spec.Unapplied { return p.refused }

// Held are the chosen changes that Options.Hold left out, with the directories that are
// left out because of them.
func (p *Plan) Held() []spec.Unapplied { return p.held }

// reserved tells whether a path is the runtime's own, or lies below such a path. A staging
// directory can be anywhere, since a directory of the tree can be the tree of another sandbox.
func reserved(path string) bool {
	return strings.HasPrefix(path, reservedPrefix) || strings.Contains(path, "/"+journalPrefix)
}

func reservedReason(path string) string {
	prefix := reservedPrefix
	if !strings.HasPrefix(path, reservedPrefix) {
		prefix = journalPrefix
	}
	return "names that begin with " + prefix + " are the runtime's own: rename it in the sandbox"
}

func (p *Plan) refuse(path, reason string) {
	p.refused = append(p.refused, spec.Unapplied{Path: path, Reason: reason})
}

func (p *Plan) conflict(path, reason string) {
	if p.o.OverwriteOnly[path] {
		return
	}
	p.conflicts = append(p.conflicts, spec.Unapplied{Path: path, Reason: reason})
}
