//go:build !oci_program

// The OCI program (cmd/sandbox-oci) does without this file: the library of cgroups takes as long to
// initialise as all of libcontainer.

package cgroups

import (
	"io/fs"
	"slices"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/containerd/cgroups/v3/cgroup2"
)

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
			func() { s.Pids, s.PidsPeak = clamp(m.Pids.Current), g.files().pidsPeak() }},
		{"blkio", func() (err error) { s.IORead, s.IOWritten, err = g.files().blkio(); return err },
			func() {}},
	} {
		if _, ok := g.host.v1(c.name); !ok {
			continue
		}
		switch err := c.read(); {
		case isGone(err):
		case err != nil:
			return Stats{}, err
		default:
			exists = true
			c.keep()
		}
	}
	if !exists && !g.files().exists() {
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
		s.Pids, s.PidsPeak = clamp(metrics.Pids.Current), g.files().pidsPeak()
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
