package router

import (
	"net/netip"

	"github.com/google/nftables"
)

// hostElements are the elements of a family's set of the host's own addresses.
func hostElements(fam family, own []netip.Addr) (elements []nftables.SetElement) {
	for _, address := range own {
		if familyOf(address).bits == fam.bits {
			elements = append(elements, nftables.SetElement{Key: address.AsSlice()})
		}
	}
	return elements
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
		if err := f.refreshSet(hostSet(fam), hostElements(fam, own)); err != nil {
			return err
		}
	}
	return f.flush()
}
