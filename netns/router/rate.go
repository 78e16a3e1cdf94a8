package router

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The sizes of a token bucket (tc-tbf(8)), in bytes.
const (
	frameHeader = 14       // of Ethernet, which the kernel counts, too
	maxBurst    = 64 << 20 // also for the fastest rate
	minQueue    = 64 << 10 // one packet of segmentation offload
	maxQueue    = 256 << 20
)

// limitRate bounds the bytes per second that leave the end of the link. The sandbox cannot remove
// the bound: its network namespace belongs to the host's user namespace.
func (e end) limitRate(rate uint64, mtu int) error {
	burst := min(max(rate/20, 2*uint64(mtu+frameHeader)), maxBurst)
	queue := min(max(rate/4, minQueue), maxQueue)
	err := e.handle.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: e.index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate, Buffer: netlink.Xmittime(rate, uint32(burst)), Limit: uint32(burst + queue),
	})
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("--network-rate: the kernel lacks the token bucket filter (CONFIG_NET_SCH_TBF, module sch_tbf): %w", errors.ErrUnsupported)
	}
	if err != nil {
		return fmt.Errorf("limit the rate of %s: %w", e.name, err)
	}
	return nil
}
