package server

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// allowCreate holds a new sandbox to the rule.
func allowCreate(ctx context.Context, c *call, q *protocol.CreateRequest) error {
	r := q.Create
	if r == nil {
		return &fault.ConfigError{Reason: "create without a configuration"}
	}
	if r.Name != "" && !isID(r.Name) {
		return &fault.ConfigError{Reason: fmt.Sprintf("invalid name %.64q: use 1 to 128 letters, digits, and any of _+-. and begin with a letter, a digit or _", r.Name)}
	}
	if err := c.pair(q.Paths); err != nil {
		return err
	}
	if err := c.resolve(ctx, r); err != nil {
		return err
	}
	return c.peer.allow(r, c.opened)
}

// create makes a sandbox. If the client disconnects before it confirms the sandbox, create removes
// the sandbox again.
func create(ctx context.Context, to answers[spec.Info], q *protocol.CreateRequest) error {
	c, r := to.call, q.Create
	c.making.Store(true)
	i, err := c.createSandbox(ctx, *r)
	if err != nil {
		return err
	}
	tied, unnamed, reused := r.Tied, r.Name == "", i.Reused
	*q = protocol.CreateRequest{}
	c.doneWithRequest()
	// Ignore an error here: a client that does not read the answer does not confirm the sandbox.
	err = to.answerFrom(context.WithoutCancel(ctx), func() (spec.Info, error) { return i, nil })
	if reused {
		return err
	}
	i = spec.Info{ID: i.ID, Created: i.Created}
	if c.awaitKeep() {
		if tied {
			c.tie(i)
		}
		return nil
	}
	if unnamed { // no later sandbox gets this name, so its level ends
		_, err := c.server.remove(ctx, i, c.peer, c.server.core.Remove)
		return err
	}
	return c.server.abandon(ctx, i, c.peer)
}

// resolve adds the overlays of the snapshot to a fork's configuration. This must come before the
// check of the rule. Later steps add no overlays.
func (c *call) resolve(ctx context.Context, r *protocol.Create) error {
	if r.From == "" {
		return nil
	}
	b, err := c.server.core.Beginning(ctx, r.From, c.peer.uid)
	if err == nil {
		b.Resolve(&r.Config)
	}
	return err
}

// awaitKeep waits until the client confirms that it has the sandbox, or disconnects.
func (c *call) awaitKeep() bool {
	said := make(chan bool, maxPending+1)
	c.takeControls(func(control protocol.Control) {
		select {
		case said <- control.Keep:
		default:
		}
	})
	select {
	case keep := <-said:
		return keep
	case <-c.gone:
	}
	select { // the client may have confirmed before it disconnected
	case keep := <-said:
		return keep
	default:
		return false
	}
}

func (c *call) createSandbox(ctx context.Context, r protocol.Create) (i spec.Info, err error) {
	if err := c.reserveSandbox(ctx, r.Name); err != nil {
		return i, err
	}
	defer func() { c.peer.endCreate(r.Name, i.ID, err) }()
	box, err := c.server.core.Create(ctx, r, Sources{Files: c.opened, UID: c.peer.uid, GIDs: c.groups, Blanks: c.peer.Blanks})
	if err != nil {
		return i, err
	}
	i, err = box.Info()
	if err == nil && !c.peer.sees(i) {
		err = &fault.SandboxError{ID: r.Name, Err: fault.ErrExists}
	}
	if err != nil {
		box.Release()
		return i, err
	}
	if !i.Reused {
		c.server.events.created(i)
	}
	c.server.handles.add(box)
	return i, nil
}

// reserveSandbox counts a sandbox that is about to be made, until peer.endCreate. It refuses the name of another
// peer's sandbox.
func (c *call) reserveSandbox(ctx context.Context, name string) error {
	if c.peer.all {
		return nil
	}
	if name != "" {
		i, err := c.describe(ctx, name)
		switch {
		case err != nil && !errors.Is(err, fault.ErrNotFound):
			return err
		case err == nil && !c.peer.sees(i):
			return &fault.SandboxError{ID: name, Err: fault.ErrExists}
		}
	}
	return c.peer.takeSandbox(ctx, c.server.core, name)
}

// pair pairs the paths of a request with its descriptors.
func (c *call) pair(paths []string) error {
	if len(paths) != len(c.files) {
		return &fault.ConfigError{Reason: fmt.Sprintf("%d paths with %d descriptors", len(paths), len(c.files))}
	}
	c.opened = map[string]*os.File{}
	for i, path := range paths {
		if path == "" || c.opened[path] != nil {
			return &fault.ConfigError{Reason: fmt.Sprintf("path %q is empty or a duplicate", path)}
		}
		c.opened[path] = c.files[i]
	}
	return nil
}
