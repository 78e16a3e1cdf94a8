package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
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
	ch, err := OpCreate.open(ctx, c, CreateRequest{&create, sources.paths}, sources.files...)
	if err != nil {
		return spec.Info{}, err
	}
	defer ch.Close()
	info, _, err := OpCreate.receive(ctx, c, ch)
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
	beginning, err := Ask(ctx, c, OpBeginning, create.From)
	if err == nil {
		beginning.Resolve(&create.Config)
	}
	return err
}

// keep tells the launcher that the client has a sandbox.
func (c *Client) keep(ctx context.Context, ch *channel.Conn) error {
	body, err := json.Marshal(&Control{Keep: true})
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

// Remove ends a sandbox and removes all of it. It may be called again: one that
// does not exist is no error.
func (c *Client) Remove(ctx context.Context, id string) error {
	return c.RemoveCreated(ctx, id, time.Time{})
}

// RemoveCreated is Remove for the sandbox that was made at this time. A later sandbox with the id stays.
func (c *Client) RemoveCreated(ctx context.Context, id string, created time.Time) error {
	return tell(ctx, c, OpRemove, id, created)
}

// Info describes one sandbox.
func (c *Client) Info(ctx context.Context, id string) (spec.Info, error) {
	return AskAbout(ctx, c, OpInfo, id, None{})
}

// List describes all sandboxes that are the client's; those of everybody for
// root.
func (c *Client) List(ctx context.Context) ([]spec.Info, error) {
	return Ask(ctx, c, OpList, None{})
}

// Execs are the commands that run in a sandbox, and the detached ones that have
// ended and were not asked for yet.
func (c *Client) Execs(ctx context.Context, id string) ([]spec.ExecInfo, error) {
	return AskAbout(ctx, c, OpExecs, id, None{})
}

// Stats are the present use of a sandbox, and the most use.
func (c *Client) Stats(ctx context.Context, id string) (spec.Stats, error) {
	return AskAbout(ctx, c, OpStats, id, None{})
}

// Pool are the counts of the launcher's pool: of the client's own sandboxes, or for root of all. It
// changes the bounds of the pool first, if c is not nil; only root may do that.
func (c *Client) Pool(ctx context.Context, config *spec.PoolConfig) (spec.PoolStats, error) {
	return Ask(ctx, c, OpPool, config)
}

// Pause stops all that runs in a sandbox, until Resume.
func (c *Client) Pause(ctx context.Context, id string) error {
	return tell(ctx, c, OpPause, id, None{})
}

// Resume lets a paused sandbox go on.
func (c *Client) Resume(ctx context.Context, id string) error {
	return tell(ctx, c, OpResume, id, None{})
}

// Update changes the limits of a sandbox that is up. Zero fields stay as they
// are.
func (c *Client) Update(ctx context.Context, id string, limits spec.Limits) error {
	return tell(ctx, c, OpUpdate, id, limits)
}

// ChangeNetwork changes the network of a sandbox that is up, or raises its sensitivity.
func (c *Client) ChangeNetwork(ctx context.Context, id string, n NetworkRequest) (spec.NetworkChange, error) {
	return AskAbout(ctx, c, OpNetwork, id, n)
}

// NetworkEvents are the kept decisions of the proxied network about a sandbox, the oldest first. With follow the
// sequence goes on until ctx ends or the sandbox is removed.
func (c *Client) NetworkEvents(ctx context.Context, id string, follow bool) iter.Seq2[spec.NetworkEvent, error] {
	return func(yield func(spec.NetworkEvent, error) bool) {
		ch, err := OpNetworkLog.open(ctx, c, About[bool]{id, &follow})
		if err != nil {
			yield(spec.NetworkEvent{}, err)
			return
		}
		defer ch.Close()
		for {
			event, _, err := OpNetworkLog.receive(ctx, c, ch)
			if err != nil {
				yield(spec.NetworkEvent{}, err)
				return
			}
			if event == nil || !yield(*event, nil) {
				return
			}
		}
	}
}

// Undo takes back the last n transactions that joined a sandbox's files.
func (c *Client) Undo(ctx context.Context, id string, n int) error {
	return tell(ctx, c, OpUndo, id, n)
}

// Discard throws away the writes to a sandbox's overlays.
func (c *Client) Discard(ctx context.Context, id string) error {
	return tell(ctx, c, OpDiscard, id, None{})
}

// Snapshot keeps a sandbox's files for others to begin with.
func (c *Client) Snapshot(ctx context.Context, id, name string) error {
	return tell(ctx, c, OpSnapshot, id, name)
}

// Snapshots are the names of the client's, of everybody's for root.
func (c *Client) Snapshots(ctx context.Context) ([]string, error) {
	return Ask(ctx, c, OpSnapshots, None{})
}

// RemoveSnapshot removes one; sandboxes that have begun with it go on.
func (c *Client) RemoveSnapshot(ctx context.Context, name string) error {
	_, err := Ask(ctx, c, OpRemoveSnapshot, name)
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
	return tell(ctx, c, OpWorkspace, id, WorkspaceRequest{config.Workspace, sources.paths}, sources.files...)
}
