package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/apply"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// ApplyOptions choose the changes that are applied, and how.
type ApplyOptions struct {
	// Paths are applied, with all files below them. Without Paths all changes are applied.
	Paths []string
	// DryRun changes nothing.
	DryRun bool
	// Overwrite also applies changes of files that the host has changed meanwhile.
	Overwrite bool
	// OverwriteOnly is Overwrite for the paths of a ConflictError. Conflicts at other paths, which the host has changed
	// since that error, are an error again.
	OverwriteOnly []string
	// AllowAutorun also applies files that run without a question, such as git hooks and shell
	// start files, and the rights of Setuid. Without AllowAutorun, Apply leaves these changes
	// out, and Applied.Held lists them.
	AllowAutorun bool
	// Setuid carries over setuid and setgid bits and file capabilities. Devices carries over
	// device nodes.
	Setuid, Devices bool
	// Listed are the Applied.Changes of a DryRun. The user has permitted these changes. If there is a change of another path by
	// now, or another kind of change, Apply returns ErrUnlisted and applies nothing. Contents, sizes and modes can be
	// others. Nil permits all changes.
	Listed []Change
}

// ErrUnlisted says that a sandbox has made changes since it was asked which ones there are.
var ErrUnlisted = errors.New("the sandbox has made more changes since the list")

// Applied are the changes that an Apply has made, or would make.
type Applied struct {
	Changes []Change
	// Held are the changes that run without a question, and are left out for that reason.
	// With a path come the directories that would be empty without the path, or that would
	// take a path of the host with them. For a file with a set-user-ID bit or capabilities
	// only the rights are left out, and the file is among Changes.
	// ApplyOptions.AllowAutorun applies all of them.
	Held []Unapplied
	// LeftOut are the parts of changes that are not carried over, with the reasons.
	LeftOut []Unapplied
}

// A ConflictError says that both the host and the sandbox have changed the same paths.
type ConflictError struct {
	Conflicts []Unapplied
	// Applied are the paths that were applied nevertheless: the host changed the new
	// files before the apply could be taken back. Mostly there are none, and nothing
	// was applied.
	Applied []string
	// Kept are the new paths of files of the host that could not go back. The host has made other files in their
	// places.
	Kept []string
	// Directories are the overlaid directories in which all was applied, before the conflicts came up in another one.
	Directories []string
}

// maxNamed bounds how many conflicts an error names.
const maxNamed = 50

func (e *ConflictError) Error() string {
	var lines []string
	for _, c := range e.Conflicts[:min(len(e.Conflicts), maxNamed)] {
		lines = append(lines, fmt.Sprintf("%s: %s", streams.Visible(c.Path), c.Reason))
	}
	if more := len(e.Conflicts) - maxNamed; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	done := "nothing was applied"
	if len(e.Applied) > 0 {
		done = "all was taken back but for " + listPaths("/", e.Applied)
	}
	if len(e.Kept) > 0 {
		done += ", and files of the host that could not go back are kept as " + listPaths("/", e.Kept)
	}
	if len(e.Directories) > 0 {
		done = "all was applied in " + listPaths("/", e.Directories) + "; in the other directories " + done
	}
	return done + ", since the host has changed meanwhile; name other paths, or overwrite these:\n" + strings.Join(lines, "\n")
}

// Apply writes the changes to the host with this program's own rights: all chosen changes,
// or, after an error, none of one directory. New files belong to the owner of the overlaid
// directory. A crash half-way leaves no file half-written: the next Apply to the directory
// finishes the work or takes it back.
//
// The changes stay in the sandbox's layer. To apply them again does nothing.
//
// Errors: *ConflictError, fs.ErrNotExist for a path that is in no overlay, ErrDamaged if
// the sandbox's files cannot be trusted, ErrUnlisted, ErrBusy if a process in the sandbox uses a directory
// of the host that was renamed inside: then nothing of the directory was applied.
func (c *Changes) Apply(ctx context.Context, o ApplyOptions) (_ *Applied, err error) {
	chosen, err := c.choose(o.Paths)
	if err != nil {
		return nil, err
	}
	if len(c.trees) == 0 {
		return nil, &Error{c.id, errNoOverlay}
	}
	if err := c.verify(ctx); err != nil {
		return nil, err
	}
	done := &Applied{}
	var plans []*treePlan
	defer func() {
		for _, p := range plans {
			err = errors.Join(err, p.close())
			p.tellChanges(done, o)
		}
	}()
	conflicts := &ConflictError{}
	for _, t := range c.trees {
		paths, ok := chosen.pathsOf(t)
		if !ok {
			continue
		}
		if t.Image && chosen.hasHost(c.trees) {
			done.LeftOut = append(done.LeftOut, Unapplied{Path: t.Path, Reason: layer.NothingBelowImage})
			continue
		}
		if err := t.Applicable(); err != nil {
			return nil, errorAbout(c.id, err)
		}
		p, err := c.plan(ctx, t, paths, o)
		if err != nil {
			return nil, c.explain(err)
		}
		plans = append(plans, p)
		p.mark()
		p.addTo(done, conflicts)
	}
	conflicting := len(conflicts.Conflicts) > 0 && !o.Overwrite
	if conflicting || o.DryRun { // no commit verifies the content
		if err := c.verify(ctx); err != nil {
			return nil, err
		}
	}
	if conflicting {
		return done, conflicts
	}
	if o.DryRun {
		return done, nil
	}
	if err := unlisted(plans, o); err != nil {
		return nil, errorAbout(c.id, err)
	}
	for i, p := range plans {
		if err := c.commit(ctx, p); err != nil {
			return done, afterOthers(err, plans[:i])
		}
	}
	return done, nil
}

// unlisted returns an error if the plans have a change that is not listed.
func unlisted(plans []*treePlan, o ApplyOptions) error {
	if o.Listed == nil {
		return nil
	}
	listed := make(map[string]Change, len(o.Listed))
	for _, c := range o.Listed {
		listed[c.Path] = c
	}
	for _, p := range plans {
		for _, c := range p.Changes() {
			c = p.tree.Absolute(c)
			was, ok := listed[c.Path]
			if same := ok && was.Kind == c.Kind && was.Type == c.Type && was.Was == c.Was && was.Opaque == c.Opaque; !same && o.includes(c) {
				return fmt.Errorf("%w: %s; nothing was applied", ErrUnlisted, listPaths("/", []string{c.Path}))
			}
		}
	}
	return nil
}

// includes says whether a change is not left out for its type.
func (o ApplyOptions) includes(c Change) bool {
	return c.Kind == Deleted || c.Type != TypeSocket && (c.Type != TypeDevice || o.Devices)
}

// afterOthers adds the directories in which all was applied before an error.
func afterOthers(err error, plans []*treePlan) error {
	var dirs []string
	for _, p := range plans {
		if len(p.Changes()) > 0 {
			dirs = append(dirs, p.tree.Path)
		}
	}
	if len(dirs) == 0 {
		return err
	}
	if conflict, ok := errors.AsType[*ConflictError](err); ok {
		conflict.Directories = dirs
		return err
	}
	return fmt.Errorf("%w; all was applied in %s", err, listPaths("/", dirs))
}

// A treePlan is the plan for one tree.
type treePlan struct {
	*apply.Plan
	tree *layer.Tree
	// untold says that the sandbox does not know of the commit.
	untold bool
}

func (p *treePlan) close() error {
	if p.untold {
		return p.Leave()
	}
	return p.Close()
}

// tellTime bounds how long a launcher may take to store the stamps of an apply, also after
// the caller's context has ended.
const tellTime = 30 * time.Second

func (c *Changes) plan(ctx context.Context, t *layer.Tree, paths []string, o ApplyOptions) (*treePlan, error) {
	// Else the plan would be made of a tree that another apply has changed half-way.
	earlier, err := apply.Recover(t.Top, false, c.tellOwn(ctx, t))
	if err != nil {
		return nil, err
	}
	notes := notesOf(t.Path, earlier)
	if len(earlier.Kept) > 0 { // the caller may not look for new notes
		return nil, errors.New(strings.Join(notes, "; ") + "; try again")
	}
	c.notes = append(c.notes, notes...)
	options := apply.Options{
		Paths: paths, Since: t.Since, Stamps: t.Stamps, Devices: o.Devices, Overwrite: o.Overwrite,
		Setuid: o.Setuid || o.AllowAutorun, Source: t.Source(c.id), Verify: c.verify, Untie: c.untie(t), OverwriteOnly: map[string]bool{},
	}
	for _, name := range o.OverwriteOnly {
		if hostpaths.Within(name, t.Path) {
			options.OverwriteOnly[strings.TrimPrefix(strings.TrimPrefix(name, t.Path), "/")] = true
		}
	}
	if !o.AllowAutorun {
		options.Hold = t.Hold
	}
	if t.OnDisk {
		options.Owners = func(c Change) apply.Owner { return apply.Owner{UID: c.UID, GID: c.GID} }
	} else {
		options.Owner = &apply.Owner{UID: t.Owner.UID, GID: t.Owner.GID}
	}
	p, err := apply.New(&t.Stack, t.Top, options)
	if err != nil {
		return nil, err
	}
	return &treePlan{Plan: p, tree: t}, nil
}

// mark fills in the marks of the changes. Marks compare modes and owners with the host's
// files, which a commit changes.
func (p *treePlan) mark() {
	changes := p.Changes()
	for i := range changes {
		p.tree.Marks(nil).Add(&changes[i])
	}
}

// tellChanges adds the changes of a plan that is done with. It takes the plan's own
// list, which may be long.
func (p *treePlan) tellChanges(done *Applied, o ApplyOptions) {
	changes := slices.DeleteFunc(p.Changes(), func(c Change) bool { return !o.includes(c) })
	for i := range changes {
		changes[i] = p.tree.Absolute(changes[i])
	}
	if done.Changes == nil {
		done.Changes = changes
		return
	}
	done.Changes = append(done.Changes, changes...)
}

// addTo adds the paths that the plan leaves out, and its conflicts.
func (p *treePlan) addTo(done *Applied, conflicts *ConflictError) {
	done.Held = append(done.Held, p.absolute(p.Held())...)
	for _, r := range p.absolute(p.Refused()) {
		if r.Reason == apply.SetuidBit || r.Reason == apply.Capabilities {
			done.Held = append(done.Held, r)
		} else {
			done.LeftOut = append(done.LeftOut, r)
		}
	}
	conflicts.Conflicts = append(conflicts.Conflicts, p.absolute(p.Conflicts())...)
}

// absolute names paths of the tree as the host does.
func (p *treePlan) absolute(all []Unapplied) []Unapplied {
	all = slices.Clone(all)
	for i := range all {
		all[i].Path = path.Join(p.tree.Path, all[i].Path)
	}
	return all
}

// commit applies to one tree, and has the sandbox remember it.
func (c *Changes) commit(ctx context.Context, p *treePlan) error {
	report, err := p.Commit(ctx)
	if conflict, ok := errors.AsType[*apply.ConflictError](err); ok && !errors.Is(err, apply.ErrUnfinished) { // it came since the plan was made
		late := &ConflictError{Conflicts: p.absolute(conflict.Conflicts)}
		for _, name := range conflict.Applied {
			late.Applied = append(late.Applied, path.Join(p.tree.Path, name))
		}
		for _, name := range conflict.Kept {
			late.Kept = append(late.Kept, path.Join(p.tree.Path, name))
		}
		return late
	}
	if err != nil {
		return c.explain(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTime)
	defer cancel()
	err = c.source.Applied(ctx, p.tree.Path, report.Stamps)
	p.tree.Remember(report.Stamps)
	if cannotNote(err) { // the next call would be refused, too
		return errorAbout(c.id, fmt.Errorf("all was applied in %s, but %s: %w", p.tree.Path, forgotten, err))
	}
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrNotRunning) { // else nothing is left that remembers
		p.untold = true
		return errorAbout(c.id, fmt.Errorf("all was applied in %s, but the sandbox could not be told; the next changes, diff or apply tells it: %w", p.tree.Path, err))
	}
	return nil
}
