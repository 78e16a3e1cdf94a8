package router

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mark is the bit of packet marks that the host's table sets on packets of the router. Docker,
// Kubernetes and Tailscale use lower bits. Cilium and Calico can use this bit, too: the mark alone does not
// identify a packet of the router.
const mark = 1 << 27

// rulePriority is the priority of the routing rules. It lies before the table "main", at 32766.
const rulePriority = 30321

// writeHost writes the host's table, which is missing, for the router behind the link. a has the ranges of the router's addresses.
func (f *firewall) writeHost(link string, a ranges) {
	f.conn.AddTable(f.table)
	filter := func(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		return f.chain(nftables.Chain{Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: priority})
	}
	marking := filter("mark", nftables.ChainHookPrerouting, nftables.ChainPriorityMangle)
	forward := filter("forward", nftables.ChainHookForward, nftables.ChainPriorityFilter)
	input := filter("input", nftables.ChainHookInput, nftables.ChainPriorityFilter)
	hide := f.chain(nftables.Chain{
		Name: "hide", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityNATSource,
	})
	accept, drop := verdict(expr.VerdictAccept), verdict(expr.VerdictDrop)
	f.rule(marking, from(link), setMark())
	f.rule(forward, to(link), connection(known), accept)
	f.rule(forward, to(link), drop)
	f.rule(forward, from(link), connection(unknown), drop)
	f.reject(forward, from(link), redirected())
	f.rule(input, from(link), connection(known), accept)
	for _, fam := range families {
		f.rule(input, from(link), isGuest(fam, f.set(guests(fam))), accept)
	}
	f.reject(input, from(link))
	for _, fam := range a.families() {
		f.rule(hide, marked(), comesFrom(fam, a.of(fam)), expressions{&expr.Masq{}})
	}
}

func setMark() expressions {
	bit := binaryutil.NativeEndian.PutUint32(mark)
	rest := binaryutil.NativeEndian.PutUint32(^uint32(mark))
	return expressions{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: scratchRegister},
		&expr.Bitwise{SourceRegister: scratchRegister, DestRegister: scratchRegister, Len: 4, Mask: rest, Xor: bit},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: scratchRegister, SourceRegister: true},
	}
}

func marked() expressions {
	return append(expressions{&expr.Meta{Key: expr.MetaKeyMARK, Register: scratchRegister}}, anyOf(mark)...)
}

// closedRule refuses packets of the link without the mark: the host's table is gone then.
func closedRule(link string, family int) *netlink.Rule {
	r := netlink.NewRule()
	mask := uint32(mark)
	r.Family, r.Priority, r.IifName = family, rulePriority, link
	r.Mark, r.Mask, r.Type = 0, &mask, unix.RTN_PROHIBIT
	return r
}

// A setting is a file of /proc/sys/net/ipv4 or ipv6 that lets packets pass the host.
type setting struct{ family, device string }

func (s setting) path() string {
	name := "forwarding"
	if s.family == "ipv6" {
		name = "force_forwarding" // "forwarding" makes a host ignore router advertisements
	}
	return filepath.Join("/proc/sys/net", s.family, "conf", s.device, name)
}

// isOff is false for a setting that the kernel does not have: before Linux 6.17 no single device
// forwards IPv6.
func (s setting) isOff() (bool, error) {
	value, err := os.ReadFile(s.path())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && bytes.HasPrefix(value, []byte("0")), err
}

func (s setting) enable() error {
	isOff, err := s.isOff()
	if err != nil || !isOff {
		return err
	}
	return os.WriteFile(s.path(), []byte("1"), 0)
}

// disable does nothing for a device that is gone.
func (s setting) disable() error {
	err := os.WriteFile(s.path(), []byte("0"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// uplinks are the devices of the host's default routes.
func uplinks(host *netlink.Handle) ([]setting, error) {
	var found []setting
	for _, f := range []struct {
		name   string
		number int
	}{{"ipv4", netlink.FAMILY_V4}, {"ipv6", netlink.FAMILY_V6}} {
		routes, err := routesOf(host, f.number, unix.RT_TABLE_MAIN)
		if err != nil {
			return nil, fmt.Errorf("list the host's routes: %w", err)
		}
		for _, r := range routes {
			if !isDefault(r) {
				continue
			}
			for _, index := range outputs(r) {
				link, err := host.LinkByIndex(index)
				if err != nil {
					return nil, fmt.Errorf("the device of a default route: %w", err)
				}
				found = append(found, setting{f.name, link.Attrs().Name})
			}
		}
	}
	return found, nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

func outputs(r netlink.Route) []int {
	if len(r.MultiPath) == 0 {
		return []int{r.LinkIndex}
	}
	var all []int
	for _, hop := range r.MultiPath {
		all = append(all, hop.LinkIndex)
	}
	return all
}
