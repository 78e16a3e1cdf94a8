package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// LiftThrottles takes away the group's limits of disk traffic. A process that
// waits for its turn cannot be killed before it has had it, which at a low rate
// takes as long as anybody likes: whoever is going to kill a group lifts them
// first. A group that is not there, or has no such limits, is no error.
func (g *Group) LiftThrottles() error { return g.LiftThrottlesIf(func() bool { return true }) }

// LiftThrottlesIf is LiftThrottles where another group may have come to have the
// name: is, which is asked once there is one open, tells whether it is still the
// one that is meant.
func (g *Group) LiftThrottlesIf(is func() bool) error {
	files := map[string]func(string) string{
		// cgroup-v1/blkio-controller.rst: a rate of 0 removes the rule.
		"blkio.throttle.read_bps_device":   func(disk string) string { return disk + " 0" },
		"blkio.throttle.write_bps_device":  func(disk string) string { return disk + " 0" },
		"blkio.throttle.read_iops_device":  func(disk string) string { return disk + " 0" },
		"blkio.throttle.write_iops_device": func(disk string) string { return disk + " 0" },
	}
	t, ok := g.host.v1("blkio")
	if g.host.Mode == V2 {
		// cgroup-v2.rst, "IO Interface Files".
		files = map[string]func(string) string{
			"io.max": func(disk string) string { return disk + " rbps=max wbps=max riops=max wiops=max" },
		}
		t, ok = g.host.unified()
	}
	if !ok {
		return nil
	}
	dir, err := t.open(g.path)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lift the limits of disk traffic of cgroup %s: %w", g.path, err)
	}
	defer dir.Close()
	if !is() {
		return nil
	}
	for file, unlimited := range files {
		if err := reset(dir, file, unlimited); err != nil {
			return fmt.Errorf("lift %s of cgroup %s: %w", file, g.path, err)
		}
	}
	return nil
}

// reset overwrites each rule of a file whose lines begin with a device.
func reset(dir *os.File, file string, unlimited func(disk string) string) error {
	rules, err := readFile(dir, file)
	if gone(err) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(rules) {
		disk, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if disk == "" {
			continue
		}
		if err := writeFile(dir, file, unlimited(disk)); err != nil {
			return err
		}
	}
	return nil
}
