package jobs

import (
	"fmt"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
)

// hostView is what a session knows of the host's files in the sandbox.
type hostView struct {
	mu sync.Mutex
	// looked is the time of the last look at the host, shown the last change that is shown.
	looked, shown time.Time
}

// upgradeCheck is the time between two looks for an upgrade of the host.
const upgradeCheck = time.Second

// refresh shows a new command the files that the host has installed or upgraded since the sandbox
// was made. If this fails, the command sees the older files, as commands that already run do.
func (h *hostView) refresh(r record.Record) {
	if r.Config.Rootfs != "" || r.Config.Image != "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if now.Sub(h.looked) < upgradeCheck {
		return
	}
	h.looked = now
	upgraded := rootfs.Upgraded()
	if !upgraded.After(r.Created) || !upgraded.After(h.shown) {
		return
	}
	if rootfs.Refresh(fmt.Sprintf("/proc/%d/root", r.Init.Pid)) == nil {
		h.shown = upgraded
	}
}
