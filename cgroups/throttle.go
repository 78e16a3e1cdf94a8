package cgroups

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// LiftThrottles removes the group's limits of disk traffic. Call it before you wait for the end of a
// killed process. A process that waits for a throttled disk ends only after this wait, which takes
// very long at a low rate. LiftThrottles ends the wait. A missing group, or a group without such
// limits, is no error.
func (g *Group) LiftThrottles() error { return g.LiftThrottlesIf(func() bool { return true }) }

// LiftThrottlesIf is LiftThrottles for a name that may belong to another group by now. It
// calls isSame after it has opened the group. If isSame returns false, it changes nothing.
func (g *Group) LiftThrottlesIf(isSame func() bool) error {
	// cgroup-v1/blkio-controller.rst: a rate of 0 removes the rule.
	files, unlimited := throttleFiles(), " 0"
	if g.host.Mode == V2 {
		// cgroup-v2.rst, "IO Interface Files".
		files, unlimited = []string{"io.max"}, " rbps=max wbps=max riops=max wiops=max"
	}
	return g.onThrottles(isSame, func(dir *os.File) error {
		var errs []error
		for _, file := range files {
			if err := liftRules(dir, file, unlimited); err != nil {
				errs = append(errs, fmt.Errorf("lift %s of cgroup %s: %w", file, g.path, err))
			}
		}
		return errors.Join(errs...)
	})
}

// throttleFiles returns the files of v1 with limits of disk traffic.
func throttleFiles() []string {
	return []string{
		"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device",
		"blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device",
	}
}

// liftRules removes each rule of a file. A rule is a line that begins with a device.
func liftRules(dir *os.File, file, unlimited string) error {
	rules, err := readFile(dir, file)
	if err != nil {
		return unlessGone(err)
	}
	var errs []error
	for line := range strings.Lines(rules) {
		disk, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if disk == "" {
			continue
		}
		errs = append(errs, ignore(writeFile(dir, file, disk+unlimited), unix.ENODEV)) // the disk was removed
	}
	return errors.Join(errs...)
}

// onThrottles calls change with the directory that has the group's limits of disk traffic. It
// does nothing if the group is gone, if isSame returns false, or if the host has no such limits.
func (g *Group) onThrottles(isSame func() bool, change func(dir *os.File) error) error {
	t, ok := g.host.controllerTree("blkio")
	if !ok {
		return nil
	}
	dir, err := t.open(g.path)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the limits of disk traffic of cgroup %s: %w", g.path, err)
	}
	defer dir.Close()
	if !isSame() {
		return nil
	}
	return change(dir)
}

// A Throttle limits the traffic with one disk, in bytes per second. 0 is no limit.
type Throttle struct {
	Major, Minor int64
	Read, Write  int64
}

// SetThrottlesIf sets limits of disk traffic, for example after LiftThrottlesIf. Limits that
// are not in all stay as they are. A missing group is no error. If isSame returns false, as
// for LiftThrottlesIf, it changes nothing.
func (g *Group) SetThrottlesIf(isSame func() bool, all []Throttle) error {
	files, keys := throttleFiles(), []string{"", ""} // of reads and of writes
	if g.host.Mode == V2 {
		files, keys = []string{"io.max", "io.max"}, []string{"rbps=", "wbps="}
	}
	return g.onThrottles(isSame, func(dir *os.File) error {
		var errs []error
		for _, t := range all {
			for i, rate := range []int64{t.Read, t.Write} {
				if rate == 0 {
					continue
				}
				value := fmt.Sprintf("%d:%d %s%d", t.Major, t.Minor, keys[i], rate)
				if err := unlessGone(writeFile(dir, files[i], value)); err != nil {
					errs = append(errs, fmt.Errorf("set %s of cgroup %s: %w", files[i], g.path, err))
				}
			}
		}
		return errors.Join(errs...)
	})
}
