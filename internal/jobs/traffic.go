package jobs

import (
	"context"

	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// trafficOf is the use of the network by the sandbox of a record. It is nil if the sandbox has no
// network, or if the host does not tell.
func (v *Session) trafficOf(ctx context.Context, r record.Record) *spec.Traffic {
	if r.Config.Network != spec.NetworkFull {
		return nil
	}
	t, err := v.all.Traffic(ctx, v.ID)
	if err != nil {
		return nil
	}
	return &t
}

// accountNetwork writes the traffic of the sandbox while the command ran to the result and to the
// ending. The kernel counts for a whole sandbox. The caller's context may have ended with the command.
func (p *Process) accountNetwork(r *spec.Result, e *ending) {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	before, now := p.before, p.Live.trafficOf(ctx, p.Config)
	switch {
	case p.Config.Config.Network != spec.NetworkFull:
		return
	case before == nil || now == nil:
		r.NetworkReceived, r.NetworkSent = -1, -1
	default:
		r.NetworkReceived, r.NetworkSent = now.Received-before.Received, now.Sent-before.Sent
	}
	quota := p.Config.Config.Limits.NetworkQuota
	if quota != 0 && now != nil && now.Charged >= int64(quota) && (r.NetworkReceived != 0 || r.NetworkSent != 0) {
		e.quota = quota
	}
}
