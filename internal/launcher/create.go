package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Create makes a sandbox. If the request allows reuse, Create may return an existing sandbox of
// that name: of several calls at once, in any processes, one makes the sandbox and the others
// find it. After an error nothing of the new sandbox is left. A request for a fork must name the
// overlays of its snapshot, which [Launcher.Beginning] returns.
//
// Errors: a *[fault.ConfigError], joined with the error of the part that refused
// (*[spec.FieldError], *[rootfs.ForbiddenError], [fs.ErrNotExist]); [fault.ErrExists];
// [fault.ErrBusy]; [fault.ErrUnavailable] if the host lacks a feature that every sandbox
// needs.
func (l *Launcher) Create(ctx context.Context, r protocol.Create, from Sources) (*Sandbox, error) {
	if r.From != "" {
		if _, err := l.layers.ReadSnapshot(r.From, from.UID); err != nil {
			return nil, err
		}
	}
	asked := r.Config
	c, err := part.Completed(asked, part.StorageOf(r))
	if err != nil {
		return nil, fault.Refusal(err)
	}
	r.Config = c
	unnamed := r.Name == ""
	if unnamed {
		r.Name = newID()
	} else if err := spec.CheckName(r.Name); err != nil {
		return nil, fault.Refusal(err)
	}
	m := &creation{Making: l.parts.NewMaking(r.Name, r, from), launcher: l, unnamed: unnamed}
	m.Asked = asked
	l.children.Reap()
	if unnamed && l.blanks != nil && c.Image == "" { // a use of an image is noted with the id, before the claim
		return m.create(ctx)
	}
	for {
		state, err := statedir.Make(l.Sandboxes(), r.Name)
		if errors.Is(err, fs.ErrExist) {
			s, free, err := l.existing(ctx, r, from.UID)
			if errors.Is(err, errFree) {
				continue // the sandbox was removed meanwhile
			}
			if free == nil || err != nil {
				return s, err
			}
			m.state = free
			return m.replace(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("state of sandboxes, below --root: %w", explain(ctx, err))
		}
		m.state = state
		return m.create(ctx)
	}
}

// errFree says that no sandbox has the name any more. A missing image is another error.
var errFree = errors.New("the name is free")

// existing answers a request whose name is taken. If the request allows reuse and the sandbox is
// healthy, existing returns the sandbox. If the sandbox is to be replaced, it returns the held
// directory. If the name is free now, the error is errFree. A sandbox whose disk became
// read-only is an error and is not replaced, because its files can still be read.
func (l *Launcher) existing(ctx context.Context, r protocol.Create, uid uint32) (_ *Sandbox, free *statedir.Dir, err error) {
	taken := &fault.SandboxError{ID: r.Name, Err: fault.ErrExists}
	if _, err := record.Read(l.Dir(r.Name)); err == nil && !r.Reuse {
		return nil, nil, taken
	}
	if l.isKeptBlank(r.Name) {
		return nil, nil, taken
	}
	// A directory without a record may be only the hold of a prune or a removal on the name.
	state, err := statedir.Await(ctx, l.Sandboxes(), r.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, errFree
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if free == nil {
			state.Release()
		}
	}()
	there, err := record.Read(state.Path)
	if errors.Is(err, fs.ErrNotExist) && !r.Reuse {
		return nil, state, nil // nobody's: the rest of a making or a removal that was cut short
	}
	if !r.Reuse {
		return nil, nil, taken
	}
	if record.IsUnknown(err) {
		return nil, nil, &fault.SandboxError{ID: r.Name, Err: fmt.Errorf("may be up: %w; down removes it with all its files", err)}
	}
	if err == nil && uid != 0 && there.UID != uid {
		return nil, nil, taken // by a sandbox of another user, in any state
	}
	if statedir.RemovalBegun(state.Path) {
		return nil, state, nil // its processes may be dying, although PID 1 still answers
	}
	s, err := l.open(r.Name)
	if err == nil {
		if err = s.healthy(ctx); err == nil {
			s.reused = true
			return s, nil, nil
		}
		s.Release()
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if errors.Is(err, errReadOnly) {
		return nil, nil, err
	}
	if wayOut(err) != "" { // the sandbox could not be examined
		return nil, nil, explain(ctx, err)
	}
	return nil, state, nil // the sandbox is not healthy: the caller replaces it
}

// isKeptBlank says that the id is of a blank, and that a launcher keeps the blank. The launcher holds the directory for
// as long as it likes: no request may wait for that.
func (l *Launcher) isKeptBlank(id string) bool {
	dir := l.Dir(id)
	return record.IsBlank(dir) && statedir.OwnerLives(dir) && !statedir.RemovalBegun(dir)
}

// create makes the sandbox in its held directory. Without one, the sandbox gets the id of a blank, or a
// new directory.
func (m *creation) create(ctx context.Context) (_ *Sandbox, err error) {
	l := m.launcher
	defer func() {
		if err == nil || m.state == nil {
			return
		}
		if m.Conn != nil {
			err = errors.Join(err, m.Conn.Close())
		}
		if undo := m.undo(context.WithoutCancel(ctx), errors.Is(err, fault.ErrExists)); undo != nil {
			m.state.Release()
			err = errors.Join(err, undo)
		}
	}()
	if !m.unnamed { // a new name has no traces
		if err := m.removeTraces(ctx); err != nil {
			return nil, err
		}
		if err := l.unlessContainer(m.ID, part.ErrContainer); err != nil {
			return nil, err
		}
	}
	defer func() {
		m.Image.Close()
		if left := m.Leaf.Close(); err != nil { // a sandbox that is made whole is not given up for a descriptor
			err = errors.Join(err, left)
		}
	}()
	if err := m.UseImage(ctx); err != nil {
		return nil, err
	}
	if err := m.inherit(); err != nil {
		return nil, err
	}
	if err := m.claimOrMake(ctx); err != nil {
		return nil, explain(ctx, err)
	}
	if err := m.noteHandedStore(); err != nil {
		return nil, err
	}
	if err := m.fork(ctx); err != nil {
		return nil, err
	}
	if err := l.networks().KeepLevel(m.ID, m.Record); err != nil {
		return nil, err
	}
	if err := m.Record.Write(m.state.Path); err != nil {
		return nil, err
	}
	v, err := l.sessions.OpenWritten(m.ID, m.Record, m.Leaf)
	if err != nil {
		return nil, err
	}
	v.Adopt(m.Conn)
	if l.servesRequests() {
		v.MakeFirstLeaf() // the next request is probably an exec
	}
	m.state.Release()
	l.trash.EmptyLater()
	if m.claimed > 0 {
		l.blanks.claims.Hit(m.From.UID, m.claimed)
	}
	return &Sandbox{launcher: l, session: v}, nil
}

// undo removes a sandbox that could not be made. isTaken says that a container has the name.
func (m *creation) undo(ctx context.Context, isTaken bool) error {
	x, err := m.launcher.beginRemoval(m.ID, m.state, recordOrNil(record.Read(m.state.Path)))
	if err != nil {
		return err
	}
	x.parts.KeepContainer = isTaken
	if err := x.finish(ctx); err != nil {
		return err
	}
	return m.state.Remove()
}

// removeTraces removes the rest of an old sandbox of this name if somebody has removed its
// directory. Such a sandbox looks like a sandbox whose removal was cut short.
func (m *creation) removeTraces(ctx context.Context) error {
	l, id := m.launcher, m.ID
	left, err := l.ids.Claimed(id)
	if err == nil && !left && statedir.Exists(filepath.Join(l.State, id)) {
		left, err = l.parts.Traced(id) // a container exists, and the quick look for a claim can miss it
	}
	// A claim can have given a blank with this id another name. The quick look can miss the blank's user ids.
	mayBeBlank := strings.HasPrefix(id, idPrefix)
	if err != nil || !left && !mayBeBlank {
		return err
	}
	if moved, err := l.parts.MovedIDs(); err != nil || moved[id] != "" {
		return errors.Join(err, &fault.SandboxError{ID: id, Err: errMoved}) // the other name may be that of another user
	}
	if !left {
		return nil
	}
	x, err := l.parts.Open(id, m.state.Path, nil)
	if err != nil {
		return err
	}
	return l.parts.Release(ctx, x)
}

// unlessContainer returns the error, with the id, if a container of the OCI commands has the id.
func (l *Launcher) unlessContainer(id string, taken error) error {
	_, err := os.Lstat(filepath.Join(l.State, id))
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	return &fault.SandboxError{ID: id, Err: taken}
}

// errMoved refuses the name that a sandbox had before its claim.
var errMoved = fmt.Errorf("%w: the sandbox has another name now; choose a different name", fault.ErrExists)

// exhausted are the errors of a process or a host that has used up something, and the ways out.
var exhausted = map[unix.Errno]string{
	unix.EMFILE: "the launcher has too many open files: raise its limit (RLIMIT_NOFILE; LimitNOFILE of systemd)",
	unix.ENFILE: "the host has too many open files: raise fs.file-max",
	unix.EAGAIN: "there is no room for another process: raise the limit of processes (RLIMIT_NPROC; TasksMax of systemd), or end some",
	unix.ENOMEM: "memory is short: end something, or add memory",
}

// wayOut returns the way out of an error in [exhausted]. It is empty for other errors.
func wayOut(err error) string {
	for errno, way := range exhausted {
		if errors.Is(err, errno) {
			return way
		}
	}
	return ""
}

// explain finds out whether the host lacks a required feature. Then its error names the feature
// and the way to get it, which says more than the failed system call.
func explain(ctx context.Context, err error) error {
	if errors.As(err, new(*rootfs.ForbiddenError)) || errors.Is(err, fs.ErrNotExist) {
		return fault.Refusal(err)
	}
	if ctx.Err() != nil {
		return err
	}
	if way := wayOut(err); way != "" { // no feature can be examined then
		return fault.Unavailable(fmt.Errorf("%s: %w", way, err))
	}
	if missing := kernel.CheckRequired(); missing != nil {
		return fault.Unavailable(fmt.Errorf("%w (%w)", missing, err))
	}
	return err
}
