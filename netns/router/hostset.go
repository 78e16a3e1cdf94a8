package router

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/google/nftables"
)

// writeHostSet makes the addresses the host's own in the router's table.
func (f *firewall) writeHostSet(fam family, own []netip.Addr) {
	set := f.existingSet(hostSet(fam))
	f.conn.FlushSet(set)
	var elements []nftables.SetElement
	for _, address := range own {
		if familyOf(address).bits == fam.bits {
			elements = append(elements, nftables.SetElement{Key: address.AsSlice()})
		}
	}
	f.add(set, elements)
}

// refreshHostSets writes the host's addresses if they have changed. The calling thread is in the router's namespace.
func (o *lockedRouter) refreshHostSets() error {
	own, err := o.hostAddresses()
	if err != nil {
		return err
	}
	f, err := openLasting(nil, tableName)
	if err != nil {
		return err
	}
	defer f.close()
	for _, fam := range families {
		elements, err := f.conn.GetSetElements(f.existingSet(hostSet(fam)))
		if err != nil {
			return fmt.Errorf("nftables: list the set %s: %w", hostSet(fam).Name, err)
		}
		present := map[netip.Addr]bool{}
		for _, e := range elements {
			a, _ := netip.AddrFromSlice(e.Key)
			present[a] = true
		}
		wanted := map[netip.Addr]bool{}
		for _, a := range own {
			if familyOf(a).bits == fam.bits {
				wanted[a] = true
			}
		}
		if !maps.Equal(present, wanted) {
			f.writeHostSet(fam, own)
		}
	}
	return f.flush()
}
