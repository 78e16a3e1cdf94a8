package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/containerd/cgroups/v3/cgroup2"
)

// Unknown is the value of a statistic or an event counter that this host does not have: the
// controller is not mounted, or the kernel is too old.
const Unknown = -1

// Stats is the use of resources by a group and the groups below it. A field can be Unknown.
type Stats struct {
	CPU        time.Duration // processor time, user and system
	Memory     int64         // bytes charged now, page cache included
	MemoryPeak int64         // bytes, the most ever; v2: Linux 5.19
	Pids       int64         // tasks (threads) now
	PidsPeak   int64         // the most tasks ever, Linux 6.1
	IORead     int64         // bytes from block devices
	IOWritten  int64         // bytes to block devices; on v1 without buffered writes
}

func unknownStats() Stats {
	return Stats{Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown}
}

// Stats reads the group's statistics.
func (g *Group) Stats() (Stats, error) {
	read := g.statsV1
	if g.host.Mode == V2 {
		read = g.statsV2
	}
	s, err := read()
	return s, g.failed("read statistics of", err)
}

func (g *Group) statsV1() (Stats, error) {
	s := unknownStats()
	m := v1.Metrics{CPU: &v1.CPUStat{Usage: &v1.CPUUsage{}, Throttling: &v1.Throttle{}}}
	// Some kernels do not count swap and kernel memory, and have no files for them.
	memory := cgroup1.NewMemory(g.host.root, cgroup1.IgnoreModules("memsw", "kmem", "kmem.tcp"))
	exists := false
	for _, c := range []struct {
		name string
		read func() error
		keep func()
	}{
		{"cpuacct", func() error { return cgroup1.NewCpuacct(g.host.root).Stat(g.path, &m) },
			func() { s.CPU = time.Duration(clamp(m.CPU.Usage.Total)) }},
		{"memory", func() error { return memory.Stat(g.path, &m) },
			func() { s.Memory, s.MemoryPeak = clamp(m.Memory.Usage.Usage), clamp(m.Memory.Usage.Max) }},
		{"pids", func() error { return cgroup1.NewPids(g.host.root).Stat(g.path, &m) },
			func() { s.Pids, s.PidsPeak = clamp(m.Pids.Current), g.pidsPeak() }},
		{"blkio", func() (err error) { s.IORead, s.IOWritten, err = g.blkio(); return err },
			func() {}},
	} {
		if _, ok := g.host.v1(c.name); !ok {
			continue
		}
		switch err := c.read(); {
		case gone(err):
		case err != nil:
			return Stats{}, err
		default:
			exists = true
			c.keep()
		}
	}
	if !exists && !g.exists() {
		return Stats{}, fs.ErrNotExist
	}
	return s, nil
}

func (g *Group) statsV2() (Stats, error) {
	s := unknownStats()
	t, _ := g.host.unified()
	m, err := cgroup2.Load(g.path, cgroup2.WithMountpoint(t.dir))
	if err != nil {
		return Stats{}, err
	}
	metrics, err := m.StatFiltered(cgroup2.StatCPU | cgroup2.StatMemory | cgroup2.StatPids | cgroup2.StatIO)
	if err != nil {
		return Stats{}, err
	}
	// The library returns 0 for a missing file. So use only the values of the controllers
	// in the group's list. The list is read last: the read fails if the group was removed
	// meanwhile.
	controllers, err := m.Controllers()
	if err != nil {
		return Stats{}, err
	}
	s.CPU = time.Duration(clamp(metrics.CPU.UsageUsec)) * time.Microsecond // needs no controller
	if slices.Contains(controllers, "memory") {
		s.Memory, s.MemoryPeak = clamp(metrics.Memory.Usage), clamp(metrics.Memory.MaxUsage)
		if s.MemoryPeak == 0 && s.Memory > 0 { // no memory.peak before Linux 5.19
			s.MemoryPeak = Unknown
		}
	}
	if slices.Contains(controllers, "pids") {
		s.Pids, s.PidsPeak = clamp(metrics.Pids.Current), g.pidsPeak()
	}
	if slices.Contains(controllers, "io") {
		s.IORead, s.IOWritten = 0, 0
		for _, device := range metrics.Io.Usage {
			s.IORead += clamp(device.Rbytes)
			s.IOWritten += clamp(device.Wbytes)
		}
	}
	return s, nil
}

// exists reports whether any hierarchy has the group.
func (g *Group) exists() bool {
	return slices.ContainsFunc(g.host.trees, func(t tree) bool { return exists(t.path(g.path)) })
}

// pidsPeak reads pids.peak, which the library does not read.
func (g *Group) pidsPeak() int64 {
	t, ok := g.host.controllerTree("pids")
	if !ok {
		return Unknown
	}
	dir, err := t.open(g.path)
	if err != nil {
		return Unknown
	}
	defer dir.Close()
	peak, _ := counter{}.read(dir, "pids.peak") // Unknown after an error
	return peak
}

// blkioFile has the bytes of a group and the groups below it, for each disk.
const blkioFile = "blkio.throttle.io_service_bytes_recursive"

// blkio reads the bytes of all disks, for the group and the groups below it. The library
// reads only those of the group.
func (g *Group) blkio() (read, written int64, err error) {
	t, ok := g.host.v1("blkio")
	if !ok {
		return Unknown, Unknown, nil
	}
	dir, err := t.open(g.path)
	if err != nil {
		return Unknown, Unknown, err
	}
	defer dir.Close()
	table, err := readFile(dir, blkioFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Unknown, Unknown, nil // Linux before 4.18
	}
	if err != nil {
		return Unknown, Unknown, err
	}
	return parseBlkio(table)
}

// parseBlkio sums lines like "254:0 Read 8388608". If there is no such line, the bytes are
// Unknown: the kernel counts the traffic of a disk only after a first throttle on that disk
// (block/blk-throttle.h:blk_should_throtl(), Linux 6.10).
func parseBlkio(table string) (read, written int64, err error) {
	read, written = Unknown, Unknown
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue // the line with the sum of all disks
		}
		n, err := strconv.ParseUint(f[2], 10, 64)
		if err != nil {
			return Unknown, Unknown, fmt.Errorf("parse blkio line %q: %w", line, err)
		}
		switch f[1] {
		case "Read":
			read = max(read, 0) + clamp(n)
		case "Write":
			written = max(written, 0) + clamp(n)
		}
	}
	return read, written, nil
}

// clamp converts v, and returns the largest int64 for larger values.
func clamp(v uint64) int64 {
	return int64(min(v, math.MaxInt64))
}
