package part

import (
	"context"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/networks"
)

// network connects sandboxes with the outside. The networks find their own rest: [networks.Networks.Prune].
type network struct{ networks.Networks }

func (network) find() ([]string, error) { return nil, nil }

func (n network) release(ctx context.Context, r *Remains) error {
	if err := n.Disconnect(ctx, r.ID); err != nil {
		return err
	}
	return n.RemoveLevelDrafts(r.ID)
}
