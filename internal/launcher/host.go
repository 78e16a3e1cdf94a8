package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp/compile"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// loadSeccomp finds a profile by name, or reads a profile from a file and checks it.
func loadSeccomp(name string, from Sources) (*specs.LinuxSeccomp, error) {
	if !strings.Contains(name, "/") && !strings.HasSuffix(name, ".json") {
		return seccomp.Profile(name)
	}
	var profile *specs.LinuxSeccomp
	var err error
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
	var paths []string
	if c.Workspace != "" && !slices.Contains(c.Overlays, c.Workspace) {
		paths = append(paths, c.Workspace)
	}
	for _, b := range c.Binds {
		if b.Writable {
			paths = append(paths, b.Source)
		}
	}
	for _, path := range paths {
		if !from.limited(path) {
			return spec.Unavailable
		}
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
	return wholeDisks(devices)
}

// disksShown is the function disks for a sandbox that is up. A path of its configuration may
// lead elsewhere by now, even to a file that its user may not see. So disksShown looks at the
// mounts of the sandbox, and at the record.
func disksShown(r record.Record, data string) ([]spec.Disk, error) {
	if !r.Config.Limits.Throttled() {
		return nil, nil
	}
	var devices []uint64
	add := func(path string) error {
		f, err := record.OpenShown(r.Init, path, unix.O_PATH)
		if err != nil {
			return err
		}
		defer f.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return fmt.Errorf("stat %s in the sandbox: %w", path, err)
		}
		devices = append(devices, st.Dev)
		return nil
	}
	targets, err := shownBelowRoot(r.Init)
	if err != nil {
		return nil, err
	}
	if r.Config.Workspace != "" {
		targets = append(targets, spec.WorkspacePath)
	}
	for _, b := range r.Config.Binds {
		targets = append(targets, b.Target)
	}
	for _, target := range targets {
		if err := add(target); err != nil {
			return nil, err
		}
	}
	for _, t := range r.Trees {
		devices = append(devices, t.Device)
	}
	if r.Config.Storage == spec.StorageDisk {
		var st unix.Stat_t
		if err := unix.Stat(data, &st); err != nil {
			return nil, fmt.Errorf("stat %s: %w", data, err)
		}
		devices = append(devices, st.Dev)
	}
	return wholeDisks(devices)
}

// shownBelowRoot returns the paths directly below the root of a sandbox. The root is in memory. A
// path below it, such as /usr, can be a mount of the host.
func shownBelowRoot(init process.ID) ([]string, error) {
	root, err := record.OpenShown(init, "/", unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	names, err := root.Readdirnames(-1)
	for i, name := range names {
		names[i] = "/" + name
	}
	return names, err
}

// wholeDisks returns the whole block devices of the given devices, each once.
func wholeDisks(devices []uint64) ([]spec.Disk, error) {
	var disks []spec.Disk
	for _, dev := range devices {
		disk, err := wholeDisk(unix.Major(dev), unix.Minor(dev))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !slices.Contains(disks, disk) {
			disks = append(disks, disk)
		}
	}
	return disks, nil
}

// wholeDisk returns the disk of a partition, or the device itself if it is no partition: the
// kernel throttles whole disks only (block/blk-cgroup.c:blkg_conf_open_bdev).
func wholeDisk(major, minor uint32) (spec.Disk, error) {
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", major, minor))
	if err != nil {
		return spec.Disk{}, err
	}
	if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
		dir = filepath.Dir(dir)
	}
	text, err := os.ReadFile(filepath.Join(dir, "dev"))
	if err != nil {
		return spec.Disk{}, err
	}
	var disk spec.Disk
	if _, err := fmt.Sscanf(string(text), "%d:%d", &disk.Major, &disk.Minor); err != nil {
		return disk, fmt.Errorf("number %q of the device in %s: %w", text, dir, err)
	}
	return disk, nil
}
