package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Create makes a sandbox. If the request allows reuse, Create may return an existing sandbox of
// that name: of several calls at once, in any processes, one makes the sandbox and the others
// find it. After an error nothing of the new sandbox is left. A request for a fork must name the
// overlays of its snapshot, which [Launcher.Beginning] returns.
//
// Errors: a *[launch.ConfigError], joined with the error of the part that refused
// (*[spec.FieldError], *[rootfs.ForbiddenError], [fs.ErrNotExist]); [launch.ErrExists];
// [launch.ErrBusy]; [launch.ErrUnavailable] if the host lacks a feature that every sandbox
// needs.
func (l *Launcher) Create(ctx context.Context, r launch.Create, from Sources) (*Sandbox, error) {
	if r.From != "" {
		if _, err := l.layers.ReadSnapshot(r.From, from.UID); err != nil {
			return nil, err
		}
	}
	asked := r.Config
	c, err := completed(asked, storageOf(r))
	if err != nil {
		return nil, launch.Refusal(err)
	}
	r.Config = c
	if r.Name == "" {
		r.Name = newID()
	} else if !record.IsName(r.Name) {
		return nil, launch.Refusal(fmt.Errorf("invalid name %.64q: use 1 to %d letters, digits, and any of _+-. and begin with a letter, a digit or _", r.Name, record.MaxName))
	}
	l.children.Reap()
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
			return l.replace(ctx, r, asked, from, free)
		}
		if err != nil {
			return nil, fmt.Errorf("state of sandboxes, below --root: %w", explain(ctx, err))
		}
		return l.create(ctx, r, asked, from, state, nil)
	}
}

// errFree says that no sandbox has the name any more. A missing image is another error.
var errFree = errors.New("the name is free")

// existing answers a request whose name is taken. If the request allows reuse and the sandbox is
// healthy, existing returns the sandbox. If the sandbox is to be replaced, it returns the held
// directory. If the name is free now, the error is errFree. A sandbox whose disk became
// read-only is an error and is not replaced, because its files can still be read.
func (l *Launcher) existing(ctx context.Context, r launch.Create, uid uint32) (_ *Sandbox, free *statedir.Dir, err error) {
	taken := &launch.SandboxError{ID: r.Name, Err: launch.ErrExists}
	if _, err := record.Read(l.Dir(r.Name)); err == nil && !r.Reuse {
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
	if !r.Reuse {
		return nil, nil, taken
	}
	there, err := record.Read(state.Path)
	if record.IsUnknown(err) {
		return nil, nil, &launch.SandboxError{ID: r.Name, Err: fmt.Errorf("may be up: %w; down removes it with all its files", err)}
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
	return nil, state, nil // the sandbox is not healthy: the caller replaces it
}

// A making is the creation of one sandbox.
//
// It makes, in this order: the state directory, an id range, the root in a private mount
// namespace, the container with its cgroup and PID 1, and the record that says that the sandbox
// is up. [Launcher.Remove] and [Launcher.Prune] find each of these by the id.
type making struct {
	launcher *Launcher
	id       string
	request  launch.Create
	asked    spec.Config // the request's configuration without defaults
	notes    []string    // about the old sandbox that the new sandbox replaces
	from     Sources
	host     *cgroups.Host
	held     cgroups.Limits // the limits that the host enforces
	names    record.Names
	group    *cgroups.Group // of the sandbox
	root     *rootfs.Root
	// users is the sandbox's user namespace.
	users *os.File
	// top is the top of the store. It is opened before the first write to the store.
	top     *os.File
	record  record.Record
	conn    *agent.Conn
	network network
	filters bool // commands may load seccomp filters
	// hostMounts has the making keep the stamps of the host's files. Only a blank needs these.
	hostMounts *rootfs.HostMounts
	stamps     rootfs.Stamps
	shown      *rootfs.Shown
}

func (l *Launcher) create(ctx context.Context, r launch.Create, asked spec.Config, from Sources, state *statedir.Dir, notes []string) (_ *Sandbox, err error) {
	m := &making{launcher: l, id: r.Name, request: r, asked: asked, from: from, notes: notes}
	defer func() {
		if err == nil {
			return
		}
		if m.conn != nil {
			err = errors.Join(err, m.conn.Close())
		}
		if errors.Is(err, launch.ErrExists) { // another object has the name
			if m.group != nil { // no other object has this name
				err = errors.Join(err, m.group.Delete(context.WithoutCancel(ctx)))
			}
			err = errors.Join(err, l.networks().Disconnect(context.WithoutCancel(ctx), r.Name), l.releaseIDs(r.Name, m.record.IDBase), state.Remove())
			return
		}
		if undo := l.removeHeld(context.WithoutCancel(ctx), r.Name, state); undo != nil {
			state.Release()
			err = errors.Join(err, undo)
		}
	}()
	if err := l.removeTraces(ctx, r.Name, state); err != nil {
		return nil, err
	}
	if err := l.unlessContainer(r.Name, errContainer); err != nil {
		return nil, err
	}
	if err := m.inherit(); err != nil {
		return nil, err
	}
	if err := m.claimOrMake(ctx, state); err != nil {
		return nil, explain(ctx, err)
	}
	if err := m.hand(); err != nil {
		return nil, err
	}
	if err := m.fork(ctx); err != nil {
		return nil, err
	}
	if err := l.networks().KeepLevel(r.Name, m.record); err != nil {
		return nil, err
	}
	if err := m.record.Write(state.Path); err != nil {
		return nil, err
	}
	s, err := l.open(r.Name)
	if err != nil {
		return nil, err
	}
	s.session.Adopt(m.conn)
	state.Release()
	l.trash.EmptyLater()
	return s, nil
}

// removeTraces removes the rest of an old sandbox of this name if somebody has removed its
// directory. Such a sandbox looks like a sandbox whose removal was cut short.
func (l *Launcher) removeTraces(ctx context.Context, id string, state *statedir.Dir) error {
	left, err := l.ids.Claimed(id)
	if err == nil && !left && statedir.Exists(filepath.Join(l.State, id)) {
		left, err = l.find.traced(id) // a container exists, and the quick look for a claim can miss it
	}
	if err != nil || !left {
		return err
	}
	if moved, err := l.find.moved(); err != nil || moved[id] != "" {
		return errors.Join(err, &launch.SandboxError{ID: id, Err: fmt.Errorf("%w: sandbox %s was made with this name", launch.ErrExists, moved[id])})
	}
	if _, err := l.removeKernel(ctx, id, state.Path); err != nil {
		return err
	}
	return l.ids.ReleaseAll(id)
}

// unlessContainer returns the error, with the id, if a container of the OCI commands has the id.
func (l *Launcher) unlessContainer(id string, taken error) error {
	_, err := os.Lstat(filepath.Join(l.State, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return &launch.SandboxError{ID: id, Err: taken}
}

// errContainer refuses the name of a container.
var errContainer = fmt.Errorf("%w, as a container", launch.ErrExists)

// explain finds out whether the host lacks a required feature. Then its error names the feature
// and the way to get it, which says more than the failed system call.
func explain(ctx context.Context, err error) error {
	var forbidden *rootfs.ForbiddenError
	if errors.As(err, &forbidden) || errors.Is(err, fs.ErrNotExist) {
		return launch.Refusal(err)
	}
	if ctx.Err() != nil {
		return err
	}
	if missing := kernel.CheckRequired(); missing != nil {
		return launch.Unavailable(fmt.Errorf("%w (%w)", missing, err))
	}
	return err
}

func (m *making) make(ctx context.Context, from Sources) (err error) {
	l := m.launcher
	l.tending.Go(cgroups.Wake)
	m.network = startNetwork()
	defer m.network.close()
	self, err := l.self()
	if err != nil {
		return err
	}
	m.record = record.Record{
		Version: record.FormatVersion, Config: m.request.Config, Tied: m.request.Tied, Owner: self, UID: from.UID,
		From: m.request.From, Created: time.Now().UTC(), Notes: m.notes, Named: m.request.Named,
	}
	if m.host, err = l.host(); err != nil {
		return err
	}
	profile, filter, note, err := m.openFilter(ctx, from)
	if err != nil {
		return err
	}
	if filter != nil {
		defer filter.Close()
	}
	if m.record.IDBase, err = l.ids.Claim(m.id); err != nil {
		return fmt.Errorf("claim a range of user ids: %w", err)
	}
	views, err := m.openGroup()
	if err != nil {
		return err
	}
	defer cgroups.CloseViews(views)
	connected := m.connect(ctx)
	defer func() { _, _ = connected() }() // no removal runs beside the rest of it
	root, err := m.rootConfig(from)
	if err != nil {
		return err
	}
	for _, v := range views {
		root.Cgroups = append(root.Cgroups, rootfs.Cgroup(v))
	}
	if root.Store, root.StoreMapped, err = m.openStore(); err != nil {
		return err
	}
	defer root.Store.Close()
	if m.top, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", root.Store.Fd())); err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	defer m.top.Close()
	if m.root, err = rootfs.Open(root); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.root.Close()) }()
	m.users, m.stamps = m.root.TakeUserNamespace(), m.root.Stamps()
	defer m.users.Close()
	if err := m.checkSharing(); err != nil {
		return err
	}
	if err := m.start(ctx, profile, filter); err != nil {
		return aboveTotal(m.host, m.request.Config.Limits.CPUs, err)
	}
	m.shown = m.root.TakeShown()
	m.record.UIDMappings, m.record.GIDMappings = m.root.UIDMappings(), m.root.GIDMappings()
	if err := m.publish(ctx, connected); err != nil {
		return err
	}
	m.record.Notes = append(m.record.Notes, m.root.Notes()...)
	if note != "" {
		m.record.Notes = append(m.record.Notes, note)
	}
	return m.noteHeldTop()
}

// hand notes that the client may hold the store: processes inside can send their open files to the
// client, over a socket.
func (m *making) hand() error {
	if m.from.peer() == nil {
		return nil
	}
	top, err := record.OpenStore(m.record.Init)
	if err != nil {
		return err
	}
	defer top.Close()
	return m.launcher.handed.Add(m.id, m.record, top)
}

// claimOrMake makes the parts of the sandbox, or takes those of a blank.
func (m *making) claimOrMake(ctx context.Context, state *statedir.Dir) error {
	if claimed, err := m.claim(ctx, state); claimed || err != nil {
		return err
	}
	defer m.launcher.makesCold()()
	return m.make(ctx, m.from)
}

// openFilter returns the profile that libcontainer loads, or the filter that the agent loads. The note
// is for the user.
func (m *making) openFilter(ctx context.Context, from Sources) (profile *specs.LinuxSeccomp, filter *os.File, note string, err error) {
	profile, err = loadSeccomp(m.request.Config.Seccomp, from)
	if err == nil {
		m.filters = seccomp.CommandsMayFilter(profile)
		profile, err = seccomp.ForAgent(profile, m.host.Mode == cgroups.V2)
	}
	if err != nil {
		return nil, nil, "", launch.Refusal(err)
	}
	filter, note, err = m.launcher.filters.Open(ctx, profile)
	if filter != nil {
		profile = nil
	}
	return profile, filter, note, err
}

// rootConfig chooses the part of the host that the sandbox sees.
func (m *making) rootConfig(from Sources) (rootfs.Config, error) {
	c := m.request.Config
	r := rootfs.Config{
		Dir:         c.Rootfs,
		Workspace:   c.Workspace,
		Files:       from.Files,
		Peer:        from.peer(),
		Private:     m.launcher.Private(),
		IDBase:      m.record.IDBase,
		NameServer:  spec.NameServer,
		Hostname:    c.Hostname,
		User:        rootfs.User{UID: c.User.UID, GID: c.User.GID, Home: spec.HomePath},
		Overlays:    c.Overlays,
		Home:        m.request.Home,
		HostMounts:  m.hostMounts,
		Areas:       []rootfs.Area{{Name: "tmp", Target: "/tmp", Mode: 0o1777}, {Name: "home", Target: spec.HomePath, Mode: 0o755}},
		MountPoints: []string{"/run"},
	}
	if c.Workspace == "" {
		r.Areas = append(r.Areas, rootfs.Area{Name: "workspace", Target: spec.WorkspacePath, Mode: 0o755})
	}
	if ownVarTmp(c) {
		r.Areas = append(r.Areas, rootfs.Area{Name: "var-tmp", Target: "/var/tmp", Mode: 0o1777})
	}
	for _, b := range c.Binds {
		r.Binds = append(r.Binds, rootfs.Bind{Source: b.Source, Target: b.Target, Writable: b.Writable})
	}
	if c.Rootfs == "" {
		languages, err := r.Peer.FindLanguages(m.request.Path, m.request.Home, r.Binds)
		if err != nil {
			return r, err
		}
		r.Prefixes = languages.Prefixes
		m.record.Path, m.record.PathNotes = languages.Path, languages.Notes
	}
	return r, nil
}

// ownVarTmp says whether the sandbox gets a /var/tmp of its own. The host's own root has no /var.
// A root directory, a bind or an overlay of /var or /var/tmp has the user's files there.
func ownVarTmp(c spec.Config) bool {
	taken := slices.Clone(c.Overlays)
	for _, b := range c.Binds {
		taken = append(taken, b.Target)
	}
	return c.Rootfs == "" && !slices.ContainsFunc(taken, func(dir string) bool {
		return dir == "/" || dir == "/var" || dir == "/var/tmp"
	})
}

// start mounts the root, starts PID 1 in it and waits until PID 1 serves. libcontainer loads the
// profile, or the agent loads the filter; only one of them is set.
func (m *making) start(ctx context.Context, profile *specs.LinuxSeccomp, filter *os.File) error {
	files, conn, err := m.initFiles()
	if err != nil {
		return err
	}
	m.conn = conn
	defer descriptor.Close(files...)
	program, err := m.launcher.program()
	if err != nil {
		return err
	}
	inherited := append([]*os.File{program}, files...)
	container.PinCgroupfs()
	thread, err := mountns.Start()
	if err != nil {
		return err
	}
	defer thread.Stop()
	err = thread.Do(func() error {
		m.record.Trees = record.NewTrees(m.root.Trees(), record.Now())
		mounted, err := mountRoot(m.root)
		if err != nil {
			return err
		}
		defer mounted.Store.Close()
		inherited = append(inherited, mounted.Store, m.top)
		if filter != nil {
			inherited = append(inherited, filter)
		}
		return m.startInit(mounted, profile, inherited)
	})
	if err != nil {
		return err
	}
	// PID 1 has the files now. As long as the launcher held a copy of PID 1's end of the socket,
	// it would not notice the end of PID 1.
	descriptor.Close(files...)
	if err := m.conn.Ready(ctx); err != nil {
		return err
	}
	if m.record.Tied {
		if err := m.conn.Tie(ctx); err != nil {
			return err
		}
	}
	if len(m.record.Trees) > 0 {
		if err := record.AwaitTick(ctx, m.record.Trees[0].Since); err != nil {
			return err
		}
	}
	return ctx.Err() // Ready does not check ctx if it does not wait
}

func mountRoot(root *rootfs.Root) (rootfs.Mounted, error) {
	if err := os.Mkdir(record.Stage, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return rootfs.Mounted{}, err
	}
	return root.Mount(record.Stage)
}

// disks are the devices that a configuration's I/O limits apply to.
func disks(c spec.Config, from Sources, data string) ([]spec.Disk, error) {
	if !c.Limits.Throttled() {
		return nil, nil
	}
	paths := slices.DeleteFunc([]string{"/usr", c.Rootfs, c.Workspace}, func(path string) bool { return path == "" })
	if c.Storage == spec.StorageDisk {
		paths = append(paths, data)
	}
	paths = append(paths, c.Overlays...)
	for _, b := range c.Binds {
		paths = append(paths, b.Source)
	}
	return disksOf(from, paths...)
}
