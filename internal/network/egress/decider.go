package egress

import (
	"context"
	"fmt"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// Decider makes the caller the decider of a sandbox. It is in force when Decider returns. A sandbox has one
// decider at a time, and only with [Box.Ask]. The caller must call Decide or Close. The error is [ErrUnknown]
// for a sandbox that is not there.
func (e Egress) Decider(ctx context.Context, key string) (*protocol.Decider, error) {
	conn, err := e.connect()
	if err == nil {
		if _, err = call(ctx, conn, request{Op: opDecide, Key: key}); err != nil {
			conn.Close()
		}
	}
	if isNoParent(err) {
		err = ErrUnknown
	}
	if err != nil {
		return nil, fmt.Errorf("decide about connections: %w", err)
	}
	return protocol.NewDecider(key, conn, func(ctx context.Context) error {
		if has, _ := e.Has(ctx, key); !has {
			return ErrUnknown
		}
		return nil
	}), nil
}
