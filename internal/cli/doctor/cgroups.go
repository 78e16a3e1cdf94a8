package doctor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
)

// cgroupFeatures are the part of the table of features that package cgroups
// finds out.
func cgroupFeatures() []kernel.Info {
	limit := func(name kernel.Feature, title string, minor int, need kernel.Need, lost, controller string) kernel.Info {
		return kernel.Info{
			Name: name, Group: "cgroups", Title: title, Since: kernel.Version{Major: 4, Minor: minor}, Need: need, Lost: lost,
			Get: "run it as root, on a kernel that has the " + controller + " controller switched on; in a container, " +
				"start that one with --privileged and a cgroup namespace of its own",
		}
	}
	return []kernel.Info{
		{
			Name: "cgroups", Group: "cgroups", Title: "cgroups", Since: kernel.Version{Major: 2, Minor: 6}, Need: kernel.Required,
			Lost: "no sandbox starts: the runtime could not bound, count and kill its processes together",
			Get:  "mount -t cgroup2 none /sys/fs/cgroup, which systemd does at boot",
		},
		limit("memory_limit", "memory limits", 5, kernel.Isolating, "a sandbox can use up the host's memory", "memory"),
		limit("cpu_limit", "cpu limits", 15, kernel.Isolating, "a sandbox can keep every core busy", "cpu"),
		limit("pids_limit", "limits of processes", 3, kernel.Isolating, "a sandbox can fork until the host has no pid left", "pids"),
		limit("io_limit", "limits of disk traffic", 5, kernel.Useful, "--io-read and --io-write are not enforced, and the Result says so", "io"),
	}
}

func examineCgroups() []kernel.Finding {
	host, err := cgroups.Probe()
	var found []kernel.Finding
	for _, info := range cgroupFeatures() {
		f := kernel.Finding{Info: info}
		if err != nil {
			f.Err = &kernel.NotSupportedError{Info: info, Cause: err, Fix: info.Get}
		} else {
			f.Detail, f.Err = findCgroup(host, info)
		}
		found = append(found, f)
	}
	return found
}

func findCgroup(host *cgroups.Host, info kernel.Info) (detail string, err error) {
	limits := map[kernel.Feature]cgroups.Limit{
		"memory_limit": host.Limits.Memory, "cpu_limit": host.Limits.CPU,
		"pids_limit": host.Limits.Pids, "io_limit": host.Limits.IO,
	}
	limit, ok := limits[info.Name]
	if !ok {
		return describeCgroups(host), nil
	}
	if !limit.Enforced {
		return "", &kernel.NotSupportedError{Info: info, Cause: errors.New(limit.Reason), Fix: info.Get}
	}
	return limit.Reason, nil
}

func describeCgroups(host *cgroups.Host) string {
	var names []string
	for _, c := range host.Controllers {
		names = append(names, c.Name)
	}
	return fmt.Sprintf("%s, with the controllers %s", host.Mode, strings.Join(names, " "))
}
