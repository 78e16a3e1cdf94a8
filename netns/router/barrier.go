package router

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// A Barrier is a chain of another program's firewall on the host. The chain refuses the packets of
// sandboxes.
type Barrier struct {
	// Chain names the family, the table and the chain.
	Chain string
	// Fix are the commands, with their arguments, that let the packets of sandboxes pass.
	Fix [][]string
}

// Barriers looks at the host's nftables, also at the rules of iptables-nft(8). It does not see the
// rules of iptables-legacy(8).
func (r Router) Barriers() ([]Barrier, error) {
	f, err := openFirewall(nil, "")
	if err != nil {
		return nil, err
	}
	chains, err := f.conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("nftables: list the host's chains: %w", err)
	}
	var found []Barrier
	for _, c := range chains {
		if !isForward(c) {
			continue
		}
		table := slices.DeleteFunc(slices.Clone(chains), func(o *nftables.Chain) bool {
			return o.Table.Name != c.Table.Name || o.Table.Family != c.Table.Family
		})
		rules, err := f.rulesOf(table)
		if err != nil {
			return nil, err
		}
		if refuses(c, rules[c.Name]) && !passesBoth(rules, r.hostLink()) {
			found = append(found, Barrier{
				Chain: fmt.Sprintf("%s %s %s", familyNames[c.Table.Family], c.Table.Name, c.Name),
				Fix:   repairCommands(c, rules, r.hostLink()),
			})
		}
	}
	return found, nil
}

// familyNames are the families whose packets a router forwards, in the words of nft(8).
var familyNames = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
}

// isForward says whether the chain judges forwarded packets, and is no router's.
func isForward(c *nftables.Chain) bool {
	_, isFamily := familyNames[c.Table.Family]
	return isFamily && c.Type == nftables.ChainTypeFilter && c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward &&
		!strings.HasPrefix(c.Table.Name, tableName)
}

// rulesOf are the rules of the chains, by their names.
func (f *firewall) rulesOf(chains []*nftables.Chain) (map[string][]chainRule, error) {
	rules := map[string][]chainRule{}
	for _, c := range chains {
		list, err := f.conn.GetRules(c.Table, c)
		if err != nil {
			return nil, fmt.Errorf("nftables: list the rules of %s %s: %w", c.Table.Name, c.Name, err)
		}
		rules[c.Name] = nil
		for _, r := range list {
			rules[c.Name] = append(rules[c.Name], readRule(r))
		}
	}
	return rules, nil
}

// A chainRule is the part of a rule that concerns a router's device.
type chainRule struct {
	in, out      string // names of devices; "sr-*" has the form "sr-"
	byConnection bool   // the rule asks for the state of the connection
	byOther      bool   // the rule asks for other things
	passes       bool   // accept, or another chain
	refuses      bool
}

func readRule(r *nftables.Rule) (c chainRule) {
	var next *string // the name that the next comparison has
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Meta:
			switch e.Key {
			case expr.MetaKeyIIFNAME:
				next = &c.in
			case expr.MetaKeyOIFNAME:
				next = &c.out
			default:
				c.byOther = true
			}
		case *expr.Cmp:
			if next != nil && e.Op == expr.CmpOpEq {
				*next = strings.TrimRight(string(e.Data), "\x00")
			} else if !c.byConnection {
				c.byOther = true
			}
			next = nil
		case *expr.Ct:
			c.byConnection = true
		case *expr.Match:
			c.byConnection = c.byConnection || e.Name == "conntrack" || e.Name == "state"
			c.byOther = c.byOther || !c.byConnection && e.Name != "comment"
		case *expr.Verdict:
			c.passes = e.Kind == expr.VerdictAccept || e.Kind == expr.VerdictJump || e.Kind == expr.VerdictGoto
			c.refuses = e.Kind == expr.VerdictDrop
		case *expr.Reject:
			c.refuses = true
		case *expr.Target:
			c.refuses = e.Name == "REJECT"
		case *expr.Bitwise, *expr.Counter:
		default:
			c.byOther = true
		}
	}
	return c
}

// refuses says whether the chain refuses packets that no rule accepts.
func refuses(c *nftables.Chain, rules []chainRule) bool {
	if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
		return true
	}
	return slices.Contains(rules, chainRule{refuses: true})
}

// passesBoth says whether rules of the table let packets of the link pass in both directions.
func passesBoth(rules map[string][]chainRule, link string) bool {
	in, out := false, false
	for _, list := range rules {
		for _, r := range list {
			if !r.passes || r.byOther {
				continue
			}
			in = in || r.out == "" && r.in != "" && strings.HasPrefix(link, r.in) && !r.byConnection
			out = out || r.in == "" && (r.out != "" && strings.HasPrefix(link, r.out) || r.out == "" && r.byConnection)
		}
	}
	return in && out
}

// repairCommands are the commands for the program that the chain belongs to.
func repairCommands(c *nftables.Chain, rules map[string][]chainRule, link string) [][]string {
	has := func(chain string) bool { _, is := rules[chain]; return is }
	iptables := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "iptables", nftables.TableFamilyIPv6: "ip6tables"}[c.Table.Family]
	switch {
	case has("ufw-user-forward"), has("ufw6-user-forward"):
		return [][]string{{"ufw", "route", "allow", "in", "on", link}}
	case c.Table.Name == "firewalld":
		trust := []string{"--zone=trusted", "--add-interface=" + link}
		return [][]string{append([]string{"firewall-cmd"}, trust...), append([]string{"firewall-cmd", "--permanent"}, trust...)}
	case iptables != "" && c.Table.Name == "filter":
		chain := c.Name
		if has("DOCKER-USER") { // dockerd keeps the rules of this chain
			chain = "DOCKER-USER"
		}
		return [][]string{
			{iptables, "-I", chain, "-i", linkPrefix + "+", "-j", "ACCEPT"},
			{iptables, "-I", chain, "-o", linkPrefix + "+", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"},
		}
	}
	insert := []string{"nft", "insert", "rule", familyNames[c.Table.Family], c.Table.Name, c.Name}
	return [][]string{
		append(slices.Clone(insert), "iifname", linkPrefix+"*", "accept"),
		append(slices.Clone(insert), "oifname", linkPrefix+"*", "ct", "state", "established,related", "accept"),
	}
}

// IsFlushed says whether the router is there and its table on the host is not: something has
// flushed the host's nftables.
func (r Router) IsFlushed() (bool, error) {
	if _, err := os.Stat(r.pinPath()); err != nil {
		return false, nil //nolint:nilerr // there is no router
	}
	_, isThere, err := r.hostSide().openTable()
	return !isThere && err == nil, err
}

// Repair makes the missing parts of a router that is there.
func (r Router) Repair(ctx context.Context) error {
	if !statedir.Exists(r.Dir) { // there was no router
		return nil
	}
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = r.changeLocked(func(*os.File) error {
		o, err := r.open()
		if err == nil {
			o.close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("repair the router: %w", err)
	}
	return nil
}
