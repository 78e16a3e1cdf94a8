package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/idrange"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/languages"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A creation makes one sandbox.
//
// It makes, in this order: the state directory, an id range, the root in a private mount
// namespace, the container with its cgroup and PID 1, and the record that says that the sandbox
// is up. [Launcher.Remove] and [Launcher.Prune] find each of these by the id.
type creation struct {
	launcher *Launcher
	id       string
	unnamed  bool // the id is new, and no older sandbox has had it
	// state is the held directory. It is nil before a sandbox without a name has taken a blank's.
	state   *statedir.Dir
	request protocol.Create
	asked   spec.Config // the request's configuration without defaults
	notes   []string    // about the old sandbox that the new sandbox replaces
	from    Sources
	host    *cgroups.Host
	held    cgroups.Limits // the limits that the host enforces
	names   record.Names
	group   *cgroups.Group // of the sandbox
	image   imageRoot
	root    *rootfs.Root
	// users is the sandbox's user namespace.
	users *os.File
	// top is the top of the store. It is opened before the first write to the store.
	top    *os.File
	record record.Record
	conn   *agent.Conn
	// leaf is the leaf of the claimed blank.
	leaf    *jobs.FirstLeaf
	network network
	filters bool // commands may load seccomp filters
	// hostMounts has the creation keep the stamps of the host's files. Only a blank needs these.
	hostMounts *rootfs.HostMounts
	stamps     rootfs.Stamps
	shown      *rootfs.Shown
	languages  languages.Found
	// claimed is the time that the claim of a blank has taken. It is 0 without a blank.
	claimed time.Duration
}

// newRecord is the record with all that follows from the request. The parts of the sandbox add theirs. The record
// equals the one that is read from the file: Round removes the monotonic clock of Created.
func (m *creation) newRecord() (record.Record, error) {
	self, err := m.launcher.self()
	return record.Record{
		Version: record.FormatVersion, Config: m.request.Config, Tied: m.request.Tied, Owner: self, UID: m.from.UID,
		From: m.request.From, Created: time.Now().UTC().Round(0), Notes: m.notes, Named: m.request.Named,
		Upstream: m.request.Upstream,
	}, err
}

func (m *creation) makeAnew(ctx context.Context) (err error) {
	l := m.launcher
	if m.record, err = m.newRecord(); err != nil {
		return err
	}
	if m.host, err = l.host(); err != nil {
		return err
	}
	profile, err := m.loadProfile()
	if err != nil {
		return err
	}
	if m.record.IDBase, err = l.ids.Claim(m.id); err != nil {
		return fmt.Errorf("claim a range of user ids: %w", err)
	}
	views, err := m.openGroup()
	if err != nil {
		return err
	}
	defer cgroups.CloseViews(views)
	// openGroup is called before Wake, because openGroup would wait for the end of Wake. Gosched lets each
	// goroutine begin now, also if Go has only one thread.
	l.tending.Go(cgroups.Wake)
	runtime.Gosched()
	m.network = begin(netns.Create)
	defer m.network.close()
	runtime.Gosched()
	connected := m.connect(ctx)
	defer func() { _, _ = connected() }() // no removal runs beside the rest of it
	filter, note, err := l.filters.Open(ctx, toldProfile(m.request.Config, profile))
	if err != nil {
		return err
	}
	if filter != nil {
		profile = nil
		defer filter.Close()
	}
	root, err := m.rootConfig()
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
	if err := m.holdImage(ctx); err != nil {
		return err
	}
	if m.top, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", root.Store.Fd())); err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	defer m.top.Close()
	if m.root, err = openRoot(root); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.root.Close()) }()
	m.users, m.stamps = m.root.TakeUserNamespace(), m.root.Stamps()
	defer m.users.Close()
	if err := m.checkSharing(); err != nil {
		return err
	}
	err = m.start(ctx, profile, filter)
	m.shown = m.root.TakeShown()
	if err != nil {
		return aboveTotal(m.host, m.request.Config.Limits.CPUs, err)
	}
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

// noteHandedStore notes that the client may hold the store: processes inside can send their open files to the
// client, over a socket.
func (m *creation) noteHandedStore() error {
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
func (m *creation) claimOrMake(ctx context.Context) error {
	blanks := m.launcher.blanks
	if blanks == nil {
		return m.untilOver(ctx, func() error { return m.makeAnew(ctx) })
	}
	missed, err := m.claim(ctx)
	if missed == "" || err != nil {
		return err
	}
	if m.state == nil {
		if m.state, err = statedir.Make(m.launcher.Sandboxes(), m.id); err != nil {
			return fmt.Errorf("state of sandboxes, below --root: %w", err)
		}
	}
	defer blanks.Elsewhere()()
	err = m.untilOver(ctx, func() error {
		err := m.makeAnew(ctx)
		for errors.Is(err, idrange.ErrNone) && blanks.Yield() {
			err = m.makeAnew(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	blanks.claims.Miss(m.from.UID, missed)
	return nil
}

// loadProfile returns the seccomp profile of the sandbox, with what PID 1 needs.
func (m *creation) loadProfile() (*specs.LinuxSeccomp, error) {
	profile, groupIDs, err := loadSeccomp(m.request.Config, m.from)
	if err == nil {
		m.record.GroupIDs = groupIDs
		m.filters = seccomp.CommandsMayFilter(profile)
		profile, err = seccomp.ForAgent(profile, m.host.Mode == cgroups.V2)
	}
	return profile, fault.Refusal(err)
}

// rootConfig chooses the part of the host that the sandbox sees.
func (m *creation) rootConfig() (rootfs.Config, error) {
	c := m.request.Config
	r := rootfs.Config{
		Dir:         c.Rootfs,
		Image:       m.image.tree,
		Writable:    c.Writable,
		Workspace:   c.Workspace,
		Files:       m.from.Files,
		Peer:        m.from.peer(),
		Private:     m.launcher.Private(),
		IDBase:      m.record.IDBase,
		NameServer:  spec.NameServer,
		Hostname:    c.Hostname,
		User:        rootfs.User{UID: c.User.UID, GID: c.User.GID, Home: spec.HomePath},
		Overlays:    c.Overlays,
		Home:        m.request.Home,
		HostMounts:  m.hostMounts,
		Packages:    &m.launcher.packages,
		Copies:      m.launcher.openCopies,
		Areas:       []rootfs.Area{{Name: "tmp", Target: "/tmp", Mode: 0o1777}, {Name: "home", Target: spec.HomePath, Mode: 0o755}},
		MountPoints: []string{"/run"},
	}
	takeSearch(&r, c.Network)
	if c.Workspace == "" {
		r.Areas = append(r.Areas, rootfs.Area{Name: "workspace", Target: spec.WorkspacePath, Mode: 0o755})
	}
	if ownVarTmp(c) {
		r.Areas = append(r.Areas, rootfs.Area{Name: "var-tmp", Target: "/var/tmp", Mode: 0o1777})
	}
	if slices.Contains(c.Overlays, "/") { // scripts of packages, such as adduser(8), write there
		r.Areas, r.MountPoints = append(r.Areas, rootfs.Area{Name: "run", Target: "/run", Mode: 0o1777}), nil
	}
	for _, b := range c.Binds {
		r.Binds = append(r.Binds, rootfs.Bind(b))
	}
	for i, dir := range m.image.config.Directories() {
		r.Areas = append(r.Areas, rootfs.Area{Name: fmt.Sprintf("volume-%d", i), Target: dir, Mode: 0o755})
	}
	if c.Rootfs == "" && c.Image == "" {
		found, err := r.Peer.FindLanguages(m.request.Path, m.request.Home, r.Binds, &m.launcher.absences)
		if err != nil {
			return r, err
		}
		r.Prefixes, m.languages = found.Prefixes, found
		m.record.Path, m.record.PathNotes = found.Path, found.Notes
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
	return c.Rootfs == "" && c.Image == "" && !slices.ContainsFunc(taken, func(dir string) bool {
		return dir == "/" || dir == "/var" || dir == "/var/tmp"
	})
}

// start mounts the root, starts PID 1 in it and waits until PID 1 serves. libcontainer loads the
// profile, or the agent loads the filter; only one of them is set.
func (m *creation) start(ctx context.Context, profile *specs.LinuxSeccomp, filter *os.File) error {
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
		m.record.Trees = record.NewTrees(m.root.Trees(), m.image.id, record.Now())
		if err := os.MkdirAll(record.Stage, 0o700); err != nil {
			return err
		}
		mounted, err := m.root.Mount(record.Stage)
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

// limitedDisks are the devices that a configuration's I/O limits apply to.
func limitedDisks(c spec.Config, from Sources, data string) ([]spec.Disk, error) {
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
