package server

import (
	"context"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

// setWorkspace gives a sandbox that is up another workspace. The peer's rule must allow the
// directory, as for a new sandbox.
func (c *call) setWorkspace(ctx context.Context, box Sandbox) error {
	dir := c.request.Workspace
	if dir == "" {
		return &fault.ConfigError{Reason: "workspace without a directory"}
	}
	files, err := byPath(c.request.Paths, c.files)
	if err != nil {
		return err
	}
	if !c.peer.all {
		if err := c.peer.allowSource(dir, files[dir]); err != nil {
			return err
		}
	}
	return box.SetWorkspace(ctx, dir, Sources{Files: files, UID: c.peer.uid, GIDs: c.groups})
}
