package kernel

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Host describes the host of a survey.
type Host struct {
	Release string // the kernel's, as uname -r says
	Machine string // as uname -m says
	Version Version
	// Container says by which sign this process is in a container or sandbox already;
	// empty on a host of its own. The survey then finds the features that the container
	// lets through.
	Container string
}

// Describe returns the host this process runs on.
func Describe() (Host, error) {
	h, err := running()
	h.Container = container()
	return h, err
}

// The namespaces a kernel starts with have fixed inode numbers,
// include/linux/proc_ns.h.
var firstNamespaces = map[string]string{
	"cgroup": "cgroup:[4026531835]",
	"pid":    "pid:[4026531836]",
	"user":   "user:[4026531837]",
}

func container() string {
	var own []string
	for kind, first := range firstNamespaces {
		if link, err := os.Readlink("/proc/self/ns/" + kind); err == nil && link != first {
			own = append(own, kind)
		}
	}
	if len(own) == 0 {
		return ""
	}
	slices.Sort(own)
	text := fmt.Sprintf("namespaces that are not the host's: %s", strings.Join(own, ", "))
	if manager := containerManager(); manager != "" {
		text += " (it has signs of " + manager + ")"
	}
	return text
}

// containerManager is the maker of the container, by the files that managers leave in it.
// An image of a host may hold such a file too, so it is no proof.
func containerManager() string {
	if name := read("/run/systemd/container"); name != "" {
		return name
	}
	for _, sign := range [][2]string{{"/run/.containerenv", "podman"}, {"/.dockerenv", "docker"}} {
		if _, err := os.Lstat(sign[0]); err == nil {
			return sign[1]
		}
	}
	return ""
}
