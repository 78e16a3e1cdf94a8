package worker

import (
	"os"

	"golang.org/x/sys/unix"
)

// KeepCapabilities has the calling thread keep its permitted capabilities over [Drop]. The caller must lock the
// goroutine to the thread, and call [ReduceCapabilities] after Drop.
func KeepCapabilities() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0))
}

// ReduceCapabilities leaves the calling thread one capability, which it must have.
func ReduceCapabilities(capability uint) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	sets[capability/32].Effective = 1 << (capability % 32)
	sets[capability/32].Permitted = 1 << (capability % 32)
	return os.NewSyscallError("capset", unix.Capset(&header, &sets[0]))
}
