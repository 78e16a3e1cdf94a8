package launcher

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/throttle"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp/compile"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// loadSeccomp finds the profile of a configuration by its name, or reads it from a file and checks
// it. groupIDs says that a built-in profile allows the set-group-ID bit.
func loadSeccomp(c spec.Config, from Sources) (profile *specs.LinuxSeccomp, groupIDs bool, err error) {
	name := c.Seccomp
	switch {
	case isProfileFile(name):
		profile, err = readSeccomp(name, from)
		return profile, false, err
	case len(record.WritableBinds(c)) > 0:
		profile, err = seccomp.Profile(name)
		return profile, false, err
	}
	profile, err = seccomp.WithGroupIDs(name)
	return profile, true, err
}

func isProfileFile(name string) bool {
	return strings.Contains(name, "/") || strings.HasSuffix(name, ".json")
}

// toldProfile is the profile of a sandbox for a filter that PID 1 loads. With a built-in profile
// PID 1 tells of some refused calls, if the host can do that. libcontainer cannot load this form.
func toldProfile(c spec.Config, profile *specs.LinuxSeccomp) *specs.LinuxSeccomp {
	if isProfileFile(c.Seccomp) || !compile.CanNotify() {
		return profile
	}
	return seccomp.Told(profile)
}

// readSeccomp reads a profile from a file and checks it.
func readSeccomp(name string, from Sources) (profile *specs.LinuxSeccomp, err error) {
	switch file := from.Files[name]; {
	case file != nil:
		profile, err = seccomp.Read(name, file)
	case from.peer() != nil:
		err = fmt.Errorf("seccomp profile %s: no descriptor came with it", name)
	default:
		profile, err = seccomp.Load(name)
	}
	if err != nil {
		return nil, err
	}
	if err := compile.Validate(profile); err != nil {
		return nil, fmt.Errorf("seccomp profile %s: %w", name, err)
	}
	return profile, nil
}

// checkOpenFiles refuses a requested limit of open files above this process's own hard limit: no
// command can have such a limit. The default is no error, and commands get a lower limit.
func checkOpenFiles(c spec.Config) error {
	hard, known := jobs.InheritedLimits()["RLIMIT_NOFILE"]
	if asked := c.Limits.NoFile; known && asked > spec.DefaultLimits().NoFile && uint64(asked) > hard {
		return &spec.FieldError{Field: "limits.nofile", Problem: fmt.Sprintf(
			"%d is more than the %d of the launcher's own hard limit: raise that with ulimit -Hn, or with LimitNOFILE= of its unit", asked, hard)}
	}
	return nil
}

// enforcement is the part of a Result that names the enforced limits.
func enforcement(c spec.Config, from Sources, host cgroups.Limits) spec.LimitReport {
	return spec.LimitReport{
		Memory: enforced(host.Memory), CPU: enforced(host.CPU), Pids: enforced(host.Pids), IO: enforced(host.IO),
		Disk: diskEnforcement(c, from),
	}
}

// diskEnforcement says whether all writable places of the sandbox are bounded. A directory of the
// host is bounded if it has a quota.
func diskEnforcement(c spec.Config, from Sources) spec.Enforcement {
	isUnbounded := func(b spec.Bind) bool { return b.Writable && !from.limited(b.Source) }
	if slices.ContainsFunc(record.HostBinds(c), isUnbounded) {
		return spec.Unavailable
	}
	return spec.Enforced
}

func enforced(l cgroups.Limit) spec.Enforcement {
	if l.Enforced {
		return spec.Enforced
	}
	return spec.Unavailable
}

// disksOf returns the whole block devices below the given paths, each once. A path on a file
// system without a block device (tmpfs, overlayfs, network) adds none.
func disksOf(from Sources, paths ...string) ([]spec.Disk, error) {
	var devices []uint64
	for _, path := range paths {
		st, err := from.stat(path)
		if err != nil {
			return nil, fmt.Errorf("stat %s: %w", path, err)
		}
		devices = append(devices, st.Dev)
	}
	return throttle.WholeDisks(devices)
}
