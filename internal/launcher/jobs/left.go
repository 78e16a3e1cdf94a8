package jobs

import (
	"fmt"
	"os"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// mostLeft bounds the names in a reason: the sandbox chooses their number.
const mostLeft = 3

// processesIn returns the names of the processes in a leaf, as comm of proc(5) has them. Processes that end
// meanwhile are left out.
func processesIn(leaf *cgroups.Leaf) (names []string) {
	pids, err := leaf.Pids()
	if err != nil {
		return nil // the leaf was removed with its sandbox
	}
	for _, pid := range pids {
		stat, err := process.StatOf(pid)
		if err != nil || stat[0] == "Z" {
			continue
		}
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
			names = append(names, fmt.Sprintf("%q", strings.TrimSuffix(string(comm), "\n")))
		}
		if len(names) > mostLeft {
			break
		}
	}
	return names
}

// leftReason tells that processes of an ended command were killed. A caller that has started a server with "&"
// learns why the server does not answer.
func leftReason(names []string) string {
	more := ""
	if len(names) > mostLeft {
		names, more = names[:mostLeft], " and others"
	}
	return fmt.Sprintf("the processes that it had left running were killed: %s%s (start a server as a command of its own, with exec --detach)",
		strings.Join(names, ", "), more)
}
