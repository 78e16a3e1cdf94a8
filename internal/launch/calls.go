package launch

import (
	"context"
	"errors"
	"io"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Create makes a sandbox, or takes the one of that name if the request allows it. The
// client opens the paths of the configuration itself: the launcher sees no more of them
// than the client can.
//
// Errors: *ConfigError, ErrExists, ErrRefused, ErrUnavailable if the host lacks a feature
// that every sandbox needs.
func (c *Client) Create(ctx context.Context, create Create) (Info, error) {
	if err := c.resolve(ctx, &create); err != nil {
		return Info{}, err
	}
	sources, err := openSources(&create.Config)
	if err != nil {
		return Info{}, err
	}
	defer sources.close()
	ch, err := c.open(ctx, &Request{Op: OpCreate, Create: &create, Paths: sources.paths}, sources.files, 0)
	if err != nil {
		return Info{}, err
	}
	defer ch.Close()
	a, _, err := c.receive(ctx, ch)
	if err != nil {
		return Info{}, err
	}
	if a.Info == nil {
		return Info{}, errAnswer
	}
	if a.Info.Reused {
		return *a.Info, nil
	}
	return *a.Info, c.keep(ctx, ch)
}

// resolve asks for the overlays of a fork that names none: the client has to open them.
func (c *Client) resolve(ctx context.Context, create *Create) error {
	if create.From == "" || len(create.Config.Overlays) > 0 {
		return nil
	}
	a, err := c.call(ctx, &Request{Op: OpBeginning, Snapshot: create.From})
	if err != nil {
		return err
	}
	if a.Beginning == nil {
		return errAnswer
	}
	a.Beginning.Resolve(&create.Config)
	return nil
}

// keep tells the launcher that the client has a sandbox.
func (c *Client) keep(ctx context.Context, ch *Channel) error {
	body, err := encode(&Control{Keep: true})
	if err == nil {
		err = ch.Send(ctx, body)
	}
	if errors.Is(err, io.EOF) {
		err = c.lost()
	}
	return err
}

// errAnswer is of a launcher that answers something else.
var errAnswer = errors.New("answer of the launcher: it belongs to another call")

// Remove ends a sandbox and removes all of it. It may be called again: one that
// does not exist is no error.
func (c *Client) Remove(ctx context.Context, id string) error {
	_, err := c.call(ctx, &Request{Op: OpRemove, ID: id})
	return err
}

// Info describes one sandbox.
func (c *Client) Info(ctx context.Context, id string) (Info, error) {
	a, err := c.call(ctx, &Request{Op: OpInfo, ID: id})
	if err != nil {
		return Info{}, err
	}
	if a.Info == nil {
		return Info{}, errAnswer
	}
	return *a.Info, nil
}

// List describes all sandboxes that are the client's; those of everybody for
// root.
func (c *Client) List(ctx context.Context) ([]Info, error) {
	a, err := c.call(ctx, &Request{Op: OpList})
	if err != nil {
		return nil, err
	}
	return a.List, nil
}

// Execs are the commands that run in a sandbox, and the detached ones that have
// ended and were not asked for yet.
func (c *Client) Execs(ctx context.Context, id string) ([]Exec, error) {
	a, err := c.call(ctx, &Request{Op: OpExecs, ID: id})
	if err != nil {
		return nil, err
	}
	return a.Execs, nil
}

// Stats are the present use of a sandbox, and the most use.
func (c *Client) Stats(ctx context.Context, id string) (Stats, error) {
	a, err := c.call(ctx, &Request{Op: OpStats, ID: id})
	if err != nil {
		return Stats{}, err
	}
	if a.Stats == nil {
		return Stats{}, errAnswer
	}
	return *a.Stats, nil
}

// Pause stops all that runs in a sandbox, until Resume.
func (c *Client) Pause(ctx context.Context, id string) error {
	_, err := c.call(ctx, &Request{Op: OpPause, ID: id})
	return err
}

// Resume lets a paused sandbox go on.
func (c *Client) Resume(ctx context.Context, id string) error {
	_, err := c.call(ctx, &Request{Op: OpResume, ID: id})
	return err
}

// Update changes the limits of a sandbox that is up. Zero fields stay as they
// are.
func (c *Client) Update(ctx context.Context, id string, limits spec.Limits) error {
	_, err := c.call(ctx, &Request{Op: OpUpdate, ID: id, Limits: &limits})
	return err
}

// Undo takes back the last n transactions that joined a sandbox's files.
func (c *Client) Undo(ctx context.Context, id string, n int) error {
	_, err := c.call(ctx, &Request{Op: OpUndo, ID: id, Count: n})
	return err
}

// Discard throws away the writes to a sandbox's overlays.
func (c *Client) Discard(ctx context.Context, id string) error {
	_, err := c.call(ctx, &Request{Op: OpDiscard, ID: id})
	return err
}

// Snapshot keeps a sandbox's files for others to begin with.
func (c *Client) Snapshot(ctx context.Context, id, name string) error {
	_, err := c.call(ctx, &Request{Op: OpSnapshot, ID: id, Snapshot: name})
	return err
}

// Snapshots are the names of the client's, of everybody's for root.
func (c *Client) Snapshots(ctx context.Context) ([]string, error) {
	a, err := c.call(ctx, &Request{Op: OpSnapshots})
	if err != nil {
		return nil, err
	}
	return a.Snapshots, nil
}

// RemoveSnapshot removes one; sandboxes that have begun with it go on.
func (c *Client) RemoveSnapshot(ctx context.Context, name string) error {
	_, err := c.call(ctx, &Request{Op: OpRemoveSnapshot, Snapshot: name})
	return err
}

// SetWorkspace has a directory be the workspace of a sandbox that is up. The client
// opens it itself, as at Create.
func (c *Client) SetWorkspace(ctx context.Context, id, dir string) error {
	config := spec.Config{Workspace: dir}
	sources, err := openSources(&config)
	if err != nil {
		return err
	}
	defer sources.close()
	_, err = c.call(ctx, &Request{Op: OpWorkspace, ID: id, Workspace: config.Workspace, Paths: sources.paths}, sources.files...)
	return err
}
