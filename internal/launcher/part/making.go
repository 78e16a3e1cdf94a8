package part

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/languages"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Making is a sandbox that is being made. [Making.Make] makes each part, or [Making.Adopt] takes the parts of a blank.
// The caller holds the sandbox's directory. After an error the caller must remove the sandbox: [Parts.Open] and
// [Parts.Release].
type Making struct {
	parts *Parts
	ID    string
	// Request is what is asked for, with all defaults.
	Request protocol.Create
	// Asked is the request's configuration without defaults.
	Asked spec.Config
	From  Sources
	// Notes are about the old sandbox that the new sandbox replaces.
	Notes  []string
	Record record.Record
	names  record.Names
	host   *cgroups.Host
	held   cgroups.Limits // the limits that the host enforces
	group  *cgroups.Group // of the sandbox
	views  []cgroups.View // of the group

	network networkNamespace
	// connected waits for the connection with the outside.
	connected func() ([]netip.Addr, error)

	// profile is the seccomp profile of PID 1 for libcontainer. It is nil if PID 1 loads the filter instead.
	profile    *specs.LinuxSeccomp
	filter     *os.File
	filterNote string
	filters    bool // commands may load seccomp filters

	Image ImageRoot
	// top is the top of the store. It is opened before the first write to the store.
	top  *os.File
	plan rootfs.Config
	root *rootfs.Root
	// users is the sandbox's user namespace.
	users *os.File
	// HostMounts has the root keep the stamps of the host's files. Only a blank needs these.
	HostMounts *rootfs.HostMounts
	Stamps     rootfs.Stamps
	Shown      *rootfs.Shown
	languages  languages.Found

	Conn *agent.Conn
	// Leaf is the leaf of the claimed blank.
	Leaf *jobs.FirstLeaf

	// closers close the files that only the making needs.
	closers []func() error
}

// NewMaking begins the making of a sandbox. It makes nothing yet.
func (p *Parts) NewMaking(id string, r protocol.Create, from Sources) Making {
	return Making{parts: p, ID: id, Request: r, Asked: r.Config, From: from}
}

// Make makes the parts. Their order is that of the needs: a part finds those before it.
func (m *Making) Make(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, m.closeAll()) }()
	for _, makePart := range []func(context.Context) error{
		m.newRecord, m.loadProfile, m.claimIDs, m.makeGroup, m.beginNetwork, m.openFilter, m.planRoot, m.makeStore,
		m.holdImage, m.openRoot, m.start, m.publish, m.noteParts,
	} {
		if err := makePart(ctx); err != nil {
			return err
		}
	}
	return nil
}

// atEnd has the end of Make call a function, also after an error. The last function comes first.
func (m *Making) atEnd(f func() error) { m.closers = append(m.closers, f) }

func (m *Making) closeAll() error {
	var errs []error
	for _, f := range slices.Backward(m.closers) {
		errs = append(errs, f())
	}
	m.closers = nil
	return errors.Join(errs...)
}

// newRecord begins the record with all that follows from the request. The parts of the sandbox add theirs. The record
// equals the one that is read from the file: Round removes the monotonic clock of Created.
func (m *Making) newRecord(context.Context) error {
	self, err := m.parts.Self()
	m.Record = record.Record{
		Version: record.FormatVersion, Config: m.Request.Config, Tied: m.Request.Tied, Owner: self, UID: m.From.UID,
		From: m.Request.From, Created: time.Now().UTC().Round(0), Notes: m.Notes, Named: m.Request.Named,
		Upstream: m.Request.Upstream,
	}
	return err
}

// noteParts completes the record.
func (m *Making) noteParts(context.Context) error {
	m.Record.Notes = append(m.Record.Notes, m.root.Notes()...)
	if m.filterNote != "" {
		m.Record.Notes = append(m.Record.Notes, m.filterNote)
	}
	return m.noteHeldTop()
}

// DropPlan forgets what only Make needs: it takes more memory than PID 1 of a blank.
func (m *Making) DropPlan() { m.plan, m.root, m.profile, m.views = rootfs.Config{}, nil, nil, nil }

// Take takes the objects of a blank that belong to no other part. The caller must close Conn and Leaf.
func (m *Making) Take(blank *Making) {
	m.host, m.held, m.names, m.Conn, m.Leaf = blank.host, blank.held, blank.names, blank.Conn, blank.Leaf
}

// Adopt gives the parts of a blank, which [Making.Take] has taken, the configuration of the request.
func (m *Making) Adopt(ctx context.Context, blank *Making, a *Additions) error {
	if err := m.adoptRecord(ctx, blank.Record); err != nil {
		return err
	}
	a.enter(m.Record.Init)
	defer a.leave()
	if err := m.withholdGroupIDs(ctx); err != nil {
		return err
	}
	defer func() { _ = m.closeAll() }() // closes descriptors only, and waits for the connection
	m.adoptNetwork(ctx)
	if err := m.adoptLimits(ctx, blank.Request.Config.Limits); err != nil {
		return AboveTotal(m.host, m.Request.Config.Limits.CPUs, err)
	}
	if err := m.adoptNames(blank.Shown, a); err != nil {
		return err
	}
	if err := m.attach(ctx, a); err != nil {
		return err
	}
	if err := m.publish(ctx); err != nil {
		return err
	}
	if m.Record.Tied {
		if err := m.Conn.Tie(ctx); err != nil {
			return err
		}
	}
	return ctx.Err() // not each step looks at ctx
}

// adoptRecord makes the record of the request, with the objects that the blank has.
func (m *Making) adoptRecord(ctx context.Context, blank record.Record) error {
	if err := m.newRecord(ctx); err != nil {
		return err
	}
	r := &m.Record
	r.Init, r.IDBase, r.UIDMappings, r.GIDMappings = blank.Init, blank.IDBase, blank.UIDMappings, blank.GIDMappings
	r.Image, r.Path, r.PathNotes = blank.Image, blank.Path, blank.PathNotes
	r.GroupIDs = blank.GroupIDs
	r.Notes = slices.Concat(r.Notes, blank.Notes)
	r.Limits = enforcement(m.Request.Config, m.From, m.held)
	return nil
}

// adoptNames gives a blank, which has no network, the host name and the search domains of the request.
func (m *Making) adoptNames(shown *rootfs.Shown, a *Additions) error {
	if a.hostname != "" {
		if err := shown.SetHostname(a.hostname); err != nil {
			return err
		}
	}
	return m.setSearch(shown)
}
