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
	return Tell(ctx, c, OpRemove, id, created)
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

// SetWorkspace has a directory be the workspace of a sandbox that is up. The client
// opens it itself, as at Create.
func (c *Client) SetWorkspace(ctx context.Context, id, dir string) error {
	config := spec.Config{Workspace: dir}
	sources, err := openSources(&config)
	if err != nil {
		return err
	}
	defer sources.close()
	return Tell(ctx, c, OpWorkspace, id, WorkspaceRequest{config.Workspace, sources.paths}, sources.files...)
}
