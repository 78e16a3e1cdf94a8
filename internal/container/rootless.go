package container

import (
	"os"
	"strconv"
	"strings"

	"github.com/moby/sys/userns"
	"github.com/opencontainers/cgroups/systemd"
)

// RootlessCgroups decides [Options].RootlessCgroups as runc does: choice is
// "true", "false", or "auto" (also ""), which says yes to everyone but real
// root and root of a user namespace whose systemd is root's.
func RootlessCgroups(choice string, systemdCgroup bool) (bool, error) {
	if choice != "" && !strings.EqualFold(choice, "auto") {
		return strconv.ParseBool(choice)
	}
	if os.Geteuid() != 0 {
		return true, nil
	}
	if !userns.RunningInUserNS() {
		return false, nil
	}
	if !systemdCgroup {
		// Which groups may be written is unknown; the rootless manager works
		// in either case.
		return true, nil
	}
	// An error means most often that there is no session bus to ask, as for a
	// system's root.
	owner, err := systemd.DetectUID()
	return err == nil && owner != 0, nil
}
