package launcher

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// claim makes a blank the sandbox of the request, if the pool has a blank that can be one. Otherwise
// it returns false, and nothing of a blank is left.
func (m *making) claim(ctx context.Context, state *statedir.Dir) (bool, error) {
	if m.launcher.blanks == nil {
		return false, nil
	}
	start := time.Now()
	b := m.launcher.takeBlank(ctx, m.request, m.from)
	if b == nil {
		return false, nil
	}
	cold := *m
	err := m.dress(ctx, state, b)
	if err == nil {
		m.launcher.blanks.claims.Hit(m.from.UID, time.Since(start))
		return true, nil
	}
	if _, refused := errors.AsType[*launch.ConfigError](err); refused || ctx.Err() != nil {
		return false, err
	}
	// The blank was broken: the caller makes another sandbox in its place.
	left := m.conn.Close()
	m.leaf.Discard()
	*m = cold
	return false, errors.Join(left, m.launcher.clearHeld(ctx, m.id, state), state.Renew())
}

// dress gives a blank the name and the configuration of the request. state is the directory with
// this name. After an error the caller must remove the sandbox with that name.
func (m *making) dress(ctx context.Context, state *statedir.Dir, b *blank) error {
	l := m.launcher
	m.host, m.held, m.names, m.conn, m.record = b.host, b.held, b.names, b.conn, b.record
	m.leaf, b.leaf = b.leaf, nil
	m.record.Config, m.record.Tied, m.record.UID = m.request.Config, m.request.Tied, m.from.UID
	m.record.Created, m.record.Notes = time.Now().UTC(), slices.Concat(m.notes, b.record.Notes)
	workspace, err := m.openWorkspace()
	if err != nil {
		return errors.Join(err, b.remove(ctx))
	}
	if workspace != nil {
		defer workspace.Close()
	}
	if err := state.Exchange(b.state); err != nil {
		return errors.Join(err, b.remove(ctx))
	}
	err = b.state.Remove() // it has the directory that was made for the request
	if err == nil {
		err = container.Rename(l.State, b.id, m.id)
	}
	if err != nil {
		return err
	}
	var inside *os.File
	m.network = sync.OnceValues(func() (_ *os.File, err error) {
		inside, err = record.OpenNetwork(m.record.Init)
		return inside, err
	})
	connected := m.connect(ctx)
	defer func() {
		_, _ = connected() // no removal runs beside the rest of it
		descriptor.Close(inside)
	}()
	if err := m.setLimits(b.request.Config.Limits); err != nil {
		return aboveTotal(m.host, m.request.Config.Limits.CPUs, err)
	}
	if workspace != nil {
		if err := inMounts(m.record, func() error { return mountns.Attach(workspace, spec.WorkspacePath) }); err != nil {
			return err
		}
	}
	if err := m.publish(ctx, connected); err != nil {
		return err
	}
	if m.record.Tied {
		if err := m.conn.Tie(ctx); err != nil {
			return err
		}
	}
	return ctx.Err() // not each step looks at ctx
}

// openWorkspace opens the workspace of the request for the blank. It returns nil if there is none.
func (m *making) openWorkspace() (*os.File, error) {
	dir := m.request.Config.Workspace
	m.record.Limits = enforcement(m.request.Config, m.from, m.held)
	if dir == "" {
		return nil, nil
	}
	config := m.record.TreeConfig(m.launcher.Roots)
	config.Workspace, config.Files, config.Peer = dir, m.from.Files, m.from.peer()
	return rootfs.OpenWorkspace(config, m.record.UIDMappings, m.record.GIDMappings)
}

// setLimits gives the sandbox the limits of the request, if it has others.
func (m *making) setLimits(has spec.Limits) (err error) {
	if m.request.Config.Limits == has {
		return nil
	}
	if m.record.Disks, err = disks(m.request.Config, m.from, m.launcher.Data); err != nil {
		return err
	}
	if m.group, err = m.host.Open(m.names.CgroupPath()); err != nil {
		return err
	}
	c, err := container.LoadIn(m.launcher.State, m.id, m.group.Path())
	if err == nil {
		err = setLimits(c, m.host, m.record)
	}
	if err == nil {
		err = m.limitSockets()
	}
	return errors.Join(err, m.group.Close())
}

// inMounts runs f in the mount namespace of a sandbox that is up.
func inMounts(r record.Record, f func() error) error {
	thread, err := mountns.Enter(r.Init)
	if err != nil {
		return err
	}
	defer thread.Stop()
	return thread.Do(f)
}
