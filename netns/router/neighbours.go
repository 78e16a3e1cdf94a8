package router

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

// disableSolicits has the sandbox's end of a link look for no neighbours: the gateways are known, and there are
// no others. The kernel has one table of neighbours for all network namespaces of the host, and keeps an
// entry that waits for an answer (net/core/neighbour.c: neigh_forced_gc()). A sandbox could fill the table, and
// the host would find no new neighbours. Without questions an entry fails at once.
func disableSolicits(sandbox *os.File) error {
	return netns.Do(sandbox, func() error {
		for _, f := range families {
			for _, questions := range []string{"mcast_solicit", "app_solicit"} {
				path := filepath.Join("/proc/sys/net", f.name, "neigh", inside, questions)
				if err := erase.IgnoreMissing(os.WriteFile(path, []byte("0"), 0)); err != nil { // a kernel can lack IPv6
					return fmt.Errorf("have %s look for no neighbours: %w", inside, err)
				}
			}
		}
		return nil
	})
}
