package server

import (
	"context"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// allowWorkspace holds the directory to the rule, as for a new sandbox.
func allowWorkspace(_ context.Context, c *call, q *protocol.WorkspaceRequest) error {
	if q.Workspace == "" {
		return &fault.ConfigError{Reason: "workspace without a directory"}
	}
	if err := c.pair(q.Paths); err != nil || c.peer.all {
		return err
	}
	return c.peer.allowSource(q.Workspace, c.opened[q.Workspace])
}

// setWorkspace gives a sandbox that is up another workspace.
func setWorkspace(ctx context.Context, c *call, q protocol.WorkspaceRequest) (a protocol.None, err error) {
	return a, c.withSandbox(ctx, func(box Sandbox) error {
		return box.SetWorkspace(ctx, q.Workspace, Sources{Files: c.opened, UID: c.peer.uid, GIDs: c.groups})
	})
}
