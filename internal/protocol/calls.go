package protocol

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Create makes a sandbox, or takes the one of that name if the request allows it. The
// client opens the paths of the configuration itself: the launcher sees no more of them
// than the client can.
//
// Errors: *ConfigError, ErrExists, ErrRefused, ErrUnavailable if the host lacks a feature
// that every sandbox needs.
func (c *Client) Create(ctx context.Context, create Create) (spec.Info, error) {
	if err := c.resolve(ctx, &create); err != nil {
		return spec.Info{}, err
	}
	sources, err := openSources(&create.Config)
	if err != nil {
		return spec.Info{}, err
	}
	defer sources.close()
	ch, err := c.open(ctx, &Request{Op: OpCreate, Create: &create, Paths: sources.paths}, sources.files, 0)
	if err != nil {
		return spec.Info{}, err
	}
	defer ch.Close()
	a, _, err := c.receive(ctx, ch)
	if err != nil {
		return spec.Info{}, err
	}
	info, err := valueOf(a.Info)
	if err != nil || info.Reused {
		return info, err
	}
	return info, c.keep(ctx, ch)
}

// resolve asks for the overlays of a fork that names none, which the client has to open, and for its image.
func (c *Client) resolve(ctx context.Context, create *Create) error {
	if create.From == "" {
		return nil
	}
	beginning, err := callFor(ctx, c, &Request{Op: OpBeginning, Snapshot: create.From}, func(a *Answer) *Beginning { return a.Beginning })
	if err == nil {
		beginning.Resolve(&create.Config)
	}
	return err
}

// keep tells the launcher that the client has a sandbox.
func (c *Client) keep(ctx context.Context, ch *channel.Conn) error {
	body, err := encode(&Control{Keep: true})
	if err == nil {
		err = ch.Send(ctx, body)
	}
	if errors.Is(err, io.EOF) {
		err = c.lostError()
	}
	return err
}

// errAnswer is of a launcher that answers something else.
var errAnswer = errors.New("answer of the launcher: it belongs to another call")

// valueOf is the part of an answer that a call has asked for.
func valueOf[T any](part *T) (T, error) {
	if part == nil {
		var none T
		return none, errAnswer
	}
	return *part, nil
}

// callFor is a call with one answer, and returns the part of the answer that the call asks
// for.
func callFor[T any](ctx context.Context, c *Client, r *Request, part func(*Answer) *T) (T, error) {
	a, err := c.call(ctx, r)
	if err != nil {
		var none T
		return none, err
	}
	return valueOf(part(a))
}

// callEmpty is a call with an empty answer.
func (c *Client) callEmpty(ctx context.Context, r *Request, files ...*os.File) error {
	_, err := c.call(ctx, r, files...)
	return err
}

// Remove ends a sandbox and removes all of it. It may be called again: one that
// does not exist is no error.
func (c *Client) Remove(ctx context.Context, id string) error {
	return c.RemoveCreated(ctx, id, time.Time{})
}

// RemoveCreated is Remove for the sandbox that was made at this time. A later sandbox with the id stays.
func (c *Client) RemoveCreated(ctx context.Context, id string, created time.Time) error {
	return c.callEmpty(ctx, &Request{Op: OpRemove, ID: id, Created: created})
}

// Info describes one sandbox.
func (c *Client) Info(ctx context.Context, id string) (spec.Info, error) {
	return callFor(ctx, c, &Request{Op: OpInfo, ID: id}, func(a *Answer) *spec.Info { return a.Info })
}

// List describes all sandboxes that are the client's; those of everybody for
// root.
func (c *Client) List(ctx context.Context) ([]spec.Info, error) {
	return callFor(ctx, c, &Request{Op: OpList}, func(a *Answer) *[]spec.Info { return &a.List })
}

// Execs are the commands that run in a sandbox, and the detached ones that have
// ended and were not asked for yet.
func (c *Client) Execs(ctx context.Context, id string) ([]spec.ExecInfo, error) {
	return callFor(ctx, c, &Request{Op: OpExecs, ID: id}, func(a *Answer) *[]spec.ExecInfo { return &a.Execs })
}

// Stats are the present use of a sandbox, and the most use.
func (c *Client) Stats(ctx context.Context, id string) (spec.Stats, error) {
	return callFor(ctx, c, &Request{Op: OpStats, ID: id}, func(a *Answer) *spec.Stats { return a.Stats })
}

// Pool are the counts of the launcher's pool: of the client's own sandboxes, or for root of all. It
// changes the bounds of the pool first, if c is not nil; only root may do that.
func (c *Client) Pool(ctx context.Context, config *spec.PoolConfig) (spec.PoolStats, error) {
	return callFor(ctx, c, &Request{Op: OpPool, Pool: config}, func(a *Answer) *spec.PoolStats { return a.Pool })
}

// Pause stops all that runs in a sandbox, until Resume.
func (c *Client) Pause(ctx context.Context, id string) error {
	return c.callEmpty(ctx, &Request{Op: OpPause, ID: id})
}

// Resume lets a paused sandbox go on.
func (c *Client) Resume(ctx context.Context, id string) error {
	return c.callEmpty(ctx, &Request{Op: OpResume, ID: id})
}

// Update changes the limits of a sandbox that is up. Zero fields stay as they
// are.
func (c *Client) Update(ctx context.Context, id string, limits spec.Limits) error {
	return c.callEmpty(ctx, &Request{Op: OpUpdate, ID: id, Limits: &limits})
}

// ChangeNetwork changes the network of a sandbox that is up, or raises its sensitivity.
func (c *Client) ChangeNetwork(ctx context.Context, id string, n NetworkRequest) (spec.NetworkChange, error) {
	return callFor(ctx, c, &Request{Op: OpNetwork, ID: id, Network: &n}, func(a *Answer) *spec.NetworkChange { return a.Network })
}

// NetworkEvents are the kept decisions of the proxied network about a sandbox, the oldest first. With follow the
// sequence goes on until ctx ends or the sandbox is removed.
func (c *Client) NetworkEvents(ctx context.Context, id string, follow bool) iter.Seq2[spec.NetworkEvent, error] {
	return func(yield func(spec.NetworkEvent, error) bool) {
		ch, err := c.open(ctx, &Request{Op: OpNetworkLog, ID: id, Follow: follow}, nil, 0)
		if err != nil {
			yield(spec.NetworkEvent{}, err)
			return
		}
		defer ch.Close()
		for {
			a, _, err := c.receive(ctx, ch)
			if err != nil {
				yield(spec.NetworkEvent{}, err)
				return
			}
			if a.NetworkEvent == nil || !yield(*a.NetworkEvent, nil) {
				return
			}
		}
	}
}

// Undo takes back the last n transactions that joined a sandbox's files.
func (c *Client) Undo(ctx context.Context, id string, n int) error {
	return c.callEmpty(ctx, &Request{Op: OpUndo, ID: id, Count: n})
}

// Discard throws away the writes to a sandbox's overlays.
func (c *Client) Discard(ctx context.Context, id string) error {
	return c.callEmpty(ctx, &Request{Op: OpDiscard, ID: id})
}

// Snapshot keeps a sandbox's files for others to begin with.
func (c *Client) Snapshot(ctx context.Context, id, name string) error {
	return c.callEmpty(ctx, &Request{Op: OpSnapshot, ID: id, Snapshot: name})
}

// Snapshots are the names of the client's, of everybody's for root.
func (c *Client) Snapshots(ctx context.Context) ([]string, error) {
	return callFor(ctx, c, &Request{Op: OpSnapshots}, func(a *Answer) *[]string { return &a.Snapshots })
}

// RemoveSnapshot removes one; sandboxes that have begun with it go on.
func (c *Client) RemoveSnapshot(ctx context.Context, name string) error {
	return c.callEmpty(ctx, &Request{Op: OpRemoveSnapshot, Snapshot: name})
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
	return c.callEmpty(ctx, &Request{Op: OpWorkspace, ID: id, Workspace: config.Workspace, Paths: sources.paths}, sources.files...)
}
