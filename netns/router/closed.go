package router

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rulePriority is the greatest priority of the routing rules. It lies before the table "main", at 32766.
const rulePriority = 30321

// closedRule refuses packets of the link without the mark: the host's table is gone then.
func closedRule(link string, family, priority int) *netlink.Rule {
	r := netlink.NewRule()
	mask := uint32(mark)
	r.Family, r.Priority, r.IifName = family, priority, link
	r.Mark, r.Mask, r.Type = 0, &mask, unix.RTN_PROHIBIT
	return r
}

// repairRules puts the closed rules before all rules of other programs: a rule before them could lead packets out. The
// kernel gives a new rule without a priority a place before the present ones, so that of a VPN that comes later lies
// before the closed rules.
func (o *lockedRouter) repairRules(link string) error {
	for _, f := range o.state.addresses().families() {
		own, least, err := closedRules(o.host, link, f.number)
		if err != nil {
			return err
		}
		if len(own) == 1 && own[0] < least {
			continue
		}
		wanted := max(1, min(rulePriority, least-1))
		if err := o.host.RuleAdd(closedRule(link, f.number, wanted)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add a routing rule: %w", err)
		}
		for _, p := range own {
			if p == wanted {
				continue
			}
			if err := o.host.RuleDel(closedRule(link, f.number, p)); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove a routing rule: %w", err)
			}
		}
	}
	return nil
}

// closedRules are the priorities of the link's closed rules, and the least one of the rules of other programs. The
// first rule of a host leads to its own addresses, with the priority 0.
func closedRules(host *netlink.Handle, link string, family int) (own []int, least int, err error) {
	rules, err := listed(func() ([]netlink.Rule, error) { return host.RuleList(family) })
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, rulePriority + 1, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("list the routing rules: %w", err)
	}
	least = rulePriority + 1
	for _, r := range rules {
		isClosed := r.Mask != nil && *r.Mask == mark && strings.HasPrefix(r.IifName, linkPrefix)
		switch {
		case isClosed && r.IifName == link:
			own = append(own, r.Priority)
		case !isClosed && r.Priority > 0:
			least = min(least, r.Priority)
		}
	}
	slices.Sort(own)
	return own, least, nil
}

// removeRules removes the closed rules of the link.
func removeRules(host *netlink.Handle, link string) (err error) {
	for _, f := range families {
		own, _, e := closedRules(host, link, f.number)
		err = errors.Join(err, e)
		for _, p := range own {
			if e := host.RuleDel(closedRule(link, f.number, p)); e != nil && !errors.Is(e, unix.ENOENT) {
				err = errors.Join(err, fmt.Errorf("remove a routing rule: %w", e))
			}
		}
	}
	return err
}
