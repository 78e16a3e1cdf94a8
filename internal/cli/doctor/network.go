package doctor

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/netns/router"
)

// A networkReport says whether the host lets the packets of sandboxes with full pass.
type networkReport struct {
	Flushed  bool            `json:"flushed"` // the router's table on the host is gone
	Barriers []barrierReport `json:"barriers"`
	Detours  []detourReport  `json:"detours"`
	Repaired []string        `json:"repaired"`
	Error    string          `json:"error"`
}

// A barrierReport names a chain of the host's firewall that refuses the packets of sandboxes.
type barrierReport struct {
	Chain string   `json:"chain"`
	Fix   []string `json:"fix"` // commands
}

// A detourReport names a destination that packets of sandboxes do not reach as those of the host do.
type detourReport struct {
	Destination string `json:"destination"`
	Fault       string `json:"fault"`
	Fix         string `json:"fix"`
}

// LookAtNetwork looks at the host's firewall. With repair it brings the router's table back and runs
// the commands that let the packets of sandboxes pass. Without root it does nothing.
func (r *Report) LookAtNetwork(ctx context.Context, over router.Router, repair bool) {
	r.Network = networkReport{Barriers: []barrierReport{}, Detours: []detourReport{}, Repaired: []string{}} // JSON has [], not null
	if r.UID != 0 {
		return
	}
	if err := r.Network.look(ctx, over, repair); err != nil {
		r.Network.Error = err.Error()
	}
}

func (n *networkReport) look(ctx context.Context, over router.Router, repair bool) (err error) {
	if n.Flushed, err = over.IsFlushed(); err != nil {
		return err
	}
	if n.Flushed && repair {
		if err := over.Repair(ctx); err != nil {
			return err
		}
		n.Flushed = false
		n.Repaired = append(n.Repaired, "the host's nftables have the table of sandboxes again")
	}
	if err := n.lookAtRoutes(ctx, over, repair); err != nil {
		return err
	}
	barriers, err := over.Barriers()
	if err != nil {
		return err
	}
	if len(barriers) > 0 && repair {
		if err := n.runFixes(ctx, barriers); err != nil {
			return err
		}
		if barriers, err = over.Barriers(); err != nil {
			return err
		}
	}
	for _, b := range barriers {
		report := barrierReport{Chain: b.Chain}
		for _, command := range b.Fix {
			report.Fix = append(report.Fix, strings.Join(command, " "))
		}
		n.Barriers = append(n.Barriers, report)
	}
	return nil
}

// lookAtRoutes compares the ways of packets. A repair of the router switches the missing forwarding on.
func (n *networkReport) lookAtRoutes(ctx context.Context, over router.Router, repair bool) error {
	detours, err := over.Detours()
	if err != nil {
		return err
	}
	if len(detours) > 0 && repair {
		if err := over.Repair(ctx); err != nil {
			return err
		}
		before := len(detours)
		if detours, err = over.Detours(); err != nil {
			return err
		}
		if len(detours) < before {
			n.Repaired = append(n.Repaired, "answers to sandboxes come in through all devices of the host")
		}
	}
	for _, d := range detours {
		n.Detours = append(n.Detours, detourReport{d.Destination.String(), d.Fault, d.Fix})
	}
	return nil
}

// runFixes runs the commands of the barriers.
func (n *networkReport) runFixes(ctx context.Context, barriers []router.Barrier) error {
	for _, b := range barriers {
		for _, command := range b.Fix {
			text := strings.Join(command, " ")
			if slices.Contains(n.Repaired, text) { // two chains can have the same command
				continue
			}
			if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", text, err, strings.TrimSpace(string(out)))
			}
			n.Repaired = append(n.Repaired, text)
		}
	}
	return nil
}

func (r Report) writeNetwork(b *strings.Builder) {
	n := r.Network
	if r.UID != 0 {
		return
	}
	fmt.Fprintln(b, "network of sandboxes with full")
	for _, done := range n.Repaired {
		line(b, "ok", "repaired: %s", done)
	}
	switch {
	case n.Error != "":
		line(b, "warn", "%s", n.Error)
	case n.Flushed:
		line(b, "warn", "something has flushed the host's nftables, so sandboxes that are up have no network. To change it: doctor --repair")
	case len(n.Barriers) == 0:
		line(b, "ok", "doctor found no firewall of this host that refuses their packets")
	}
	for _, d := range n.Detours {
		line(b, "warn", "%s: %s. To change it: %s", d.Destination, d.Fault, d.Fix)
	}
	for _, barrier := range n.Barriers {
		line(b, "warn", "the chain %q refuses their packets. To change it: doctor --repair, or: %s", barrier.Chain, strings.Join(barrier.Fix, "; "))
	}
}
