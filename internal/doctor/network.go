package doctor

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/netns/router"
)

// A networkReport tells of the way that packets of sandboxes with full have through the host.
type networkReport struct {
	Flushed  bool            `json:"flushed"` // the router's table on the host is gone
	Barriers []barrierReport `json:"barriers"`
	Repaired []string        `json:"repaired"`
	Error    string          `json:"error"`
}

// A barrierReport names a chain of the host's firewall that refuses the packets of sandboxes.
type barrierReport struct {
	Chain string   `json:"chain"`
	Fix   []string `json:"fix"` // commands
}

// LookAtNetwork looks at the host's firewall. With repair it brings the router's table back and runs
// the commands that let the packets of sandboxes pass. Without root it does nothing.
func (r *Report) LookAtNetwork(ctx context.Context, over router.Router, repair bool) {
	r.Network = networkReport{Barriers: []barrierReport{}, Repaired: []string{}} // in JSON no null
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
		if err := over.Repair(); err != nil {
			return err
		}
		n.Flushed = false
		n.Repaired = append(n.Repaired, "the table of sandboxes in the host's nftables is back")
	}
	barriers, err := over.Barriers()
	if err != nil {
		return err
	}
	if len(barriers) > 0 && repair {
		if err := n.remove(ctx, barriers); err != nil {
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

// remove runs the commands that the barriers name.
func (n *networkReport) remove(ctx context.Context, barriers []router.Barrier) error {
	var done []string
	for _, b := range barriers {
		for _, command := range b.Fix {
			text := strings.Join(command, " ")
			if slices.Contains(done, text) { // of the other family
				continue
			}
			if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", text, err, strings.TrimSpace(string(out)))
			}
			done = append(done, text)
		}
	}
	n.Repaired = append(n.Repaired, done...)
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
		line(b, "warn", "something has flushed the host's nftables. Without: sandboxes that are up have no network. To change it: doctor --repair")
	case len(n.Barriers) == 0:
		line(b, "ok", "no firewall of this host that doctor can see refuses their packets")
	}
	for _, barrier := range n.Barriers {
		line(b, "warn", "the chain %q refuses their packets. To change it: doctor --repair, or: %s", barrier.Chain, strings.Join(barrier.Fix, "; "))
	}
}
