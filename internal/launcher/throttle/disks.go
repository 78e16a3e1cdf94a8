package throttle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Disks are the disks that the limits of a sandbox apply to, which is up. data is the data directory.
// A path of the sandbox's configuration may lead elsewhere by now, even to a file that its user may not
// see. So Disks looks at the mounts of the sandbox, and at the record.
func Disks(r record.Record, data string) ([]spec.Disk, error) {
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
		if t.Image == "" {
			devices = append(devices, t.Device)
		}
	}
	if r.Config.Storage == spec.StorageDisk {
		var st unix.Stat_t
		if err := unix.Stat(data, &st); err != nil {
			return nil, fmt.Errorf("stat %s: %w", data, err)
		}
		devices = append(devices, st.Dev)
	}
	return WholeDisks(devices)
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

// WholeDisks returns the whole block devices of the given devices, each once. A device of a file system
// without a block device (tmpfs, overlayfs, network) adds none.
func WholeDisks(devices []uint64) ([]spec.Disk, error) {
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
