package jobs

import (
	"context"
	"fmt"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// trafficOf is the use of the network by the sandbox of a record. It is nil if the sandbox has no
// network, or if the host does not tell.
func (v *Session) trafficOf(ctx context.Context, r record.Record) *spec.Traffic {
	if r.Config.Network == spec.NetworkNone {
		return nil
	}
	t, err := v.all.Traffic(ctx, v.ID)
	if err != nil {
		return nil
	}
	return &t
}

// networkUse is the part of an ending that tells of the network. Only hits while the command ran count.
type networkUse struct {
	// quota and requests are the limits that are used up.
	quota    spec.Size
	requests int64
	// refused counts the connections, requests and names that the rules have refused. reasons are the last ones.
	refused int64
	reasons []string
}

// maxReasons is the number of refusals that a Result names.
const maxReasons = 5

// accountNetwork writes the traffic of the sandbox while the command ran to the result and to the
// ending. The kernel counts for a whole sandbox. The caller's context may have ended with the command.
func (p *Process) accountNetwork(r *spec.Result, e *commandEnd) {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	before, now := p.before, p.Live.trafficOf(ctx, p.Config)
	switch {
	case p.Config.Config.Network == spec.NetworkNone:
		return
	case !isCount(before, now):
		r.NetworkReceived, r.NetworkSent = -1, -1
		return
	}
	r.NetworkReceived, r.NetworkSent = now.Received-before.Received, now.Sent-before.Sent
	e.network.refused = now.Refused - before.Refused
	limits, isUsed := p.Config.Config.Limits, r.NetworkReceived != 0 || r.NetworkSent != 0 || e.network.refused > 0
	if limits.NetworkQuota != 0 && now.Charged >= int64(limits.NetworkQuota) && isUsed {
		e.network.quota = limits.NetworkQuota
	}
	if limits.NetworkRequests != 0 && now.Requests >= limits.NetworkRequests && e.network.refused > 0 {
		e.network.requests = limits.NetworkRequests
	}
	isFailedToo := now.Requests > before.Requests && p.Live.all.TellsFailures(p.Config)
	if e.network.refused > 0 || isFailedToo {
		e.network.reasons = p.Live.all.Refusals(ctx, p.Live.ID, p.StartedAt, isFailedToo, maxReasons)
	}
}

// isCount says whether the difference of two counts is the use meanwhile. Counts of the proxied network begin anew
// if its processes are killed.
func isCount(before, now *spec.Traffic) bool {
	return before != nil && now != nil && now.Received >= before.Received && now.Sent >= before.Sent &&
		now.Requests >= before.Requests && now.Refused >= before.Refused
}

// violations are the limits of the network that the command has hit, and the refusals of its rules.
func (n networkUse) violations() (all []spec.Violation) {
	if n.quota != 0 {
		all = append(all, limitHit("network quota of %s used up, packets or connections refused (raise it with --network-quota)", n.quota))
	}
	if n.requests != 0 {
		all = append(all, limitHit("limit of %d network requests reached (raise it with --network-requests)", n.requests))
	}
	for _, reason := range n.reasons {
		all = append(all, spec.Violation{Kind: "network", Detail: reason})
	}
	if n.refused > 0 && len(n.reasons) == 0 {
		all = append(all, spec.Violation{Kind: "network", Detail: fmt.Sprintf("connections, requests and names refused: %d", n.refused)})
	}
	return all
}
