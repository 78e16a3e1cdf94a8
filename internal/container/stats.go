package container

import (
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/intelrdt"
	"github.com/opencontainers/runc/types"
)

// Stats are a container's counters in the JSON that runc prints (runc v1.5.2,
// types/events.go). Times are in nanoseconds, sizes in bytes.
type Stats types.Stats

// Stats reads the counters of the container's cgroup and, where it has one, of
// its Intel RDT group.
func (c *Container) Stats() (*Stats, error) {
	ls, err := c.lc.Stats()
	if err != nil {
		return nil, err
	}
	cg := ls.CgroupStats
	s := &Stats{
		CPU:               cpuStats(cg.CpuStats),
		CPUSet:            types.CPUSet(cg.CPUSetStats),
		Memory:            memoryStats(cg.MemoryStats),
		Pids:              types.Pids(cg.PidsStats),
		Blkio:             blkioStats(cg.BlkioStats),
		Hugetlb:           map[string]types.Hugetlb{},
		NetworkInterfaces: ls.Interfaces,
	}
	for size, h := range cg.HugetlbStats {
		s.Hugetlb[size] = types.Hugetlb{Usage: h.Usage, Max: h.MaxUsage, Failcnt: h.Failcnt}
	}
	if ls.IntelRdtStats != nil {
		s.IntelRdt = intelRdtStats(ls.IntelRdtStats)
	}
	return s, nil
}

// NotifyOOM returns a channel that gets a value each time memory runs out in
// the container, and is closed when its cgroup is gone. On cgroup v2 it is
// closed already when no process is left.
func (c *Container) NotifyOOM() (<-chan struct{}, error) { return c.lc.NotifyOOM() }

func cpuStats(c cgroups.CpuStats) types.Cpu {
	return types.Cpu{
		Usage: types.CpuUsage{
			Total:        c.CpuUsage.TotalUsage,
			Percpu:       c.CpuUsage.PercpuUsage,
			PercpuKernel: c.CpuUsage.PercpuUsageInKernelmode,
			PercpuUser:   c.CpuUsage.PercpuUsageInUsermode,
			Kernel:       c.CpuUsage.UsageInKernelmode,
			User:         c.CpuUsage.UsageInUsermode,
		},
		Throttling: types.Throttling(c.ThrottlingData),
		PSI:        c.PSI,
	}
}

func memoryStats(m cgroups.MemoryStats) types.Memory {
	entry := func(d cgroups.MemoryData) types.MemoryEntry {
		return types.MemoryEntry{Limit: d.Limit, Usage: d.Usage, Max: d.MaxUsage, Failcnt: d.Failcnt}
	}
	return types.Memory{
		Cache:     m.Cache,
		Usage:     entry(m.Usage),
		Swap:      entry(m.SwapUsage),
		Kernel:    entry(m.KernelUsage),
		KernelTCP: entry(m.KernelTCPUsage),
		Raw:       m.Stats,
		PSI:       m.PSI,
	}
}

func blkioStats(b cgroups.BlkioStats) types.Blkio {
	entries := func(in []cgroups.BlkioStatEntry) []types.BlkioEntry {
		var out []types.BlkioEntry
		for _, e := range in {
			out = append(out, types.BlkioEntry(e))
		}
		return out
	}
	return types.Blkio{
		IoServiceBytesRecursive: entries(b.IoServiceBytesRecursive),
		IoServicedRecursive:     entries(b.IoServicedRecursive),
		IoQueuedRecursive:       entries(b.IoQueuedRecursive),
		IoServiceTimeRecursive:  entries(b.IoServiceTimeRecursive),
		IoWaitTimeRecursive:     entries(b.IoWaitTimeRecursive),
		IoMergedRecursive:       entries(b.IoMergedRecursive),
		IoTimeRecursive:         entries(b.IoTimeRecursive),
		SectorsRecursive:        entries(b.SectorsRecursive),
		PSI:                     b.PSI,
	}
}

// intelRdtStats has the statistics that this CPU offers.
func intelRdtStats(s *intelrdt.Stats) types.IntelRdt {
	out := types.IntelRdt{Schemata: s.Schemata}
	if intelrdt.IsCATEnabled() {
		out.L3CacheInfo = (*types.L3CacheInfo)(s.L3CacheInfo)
		out.L3CacheSchemaRoot, out.L3CacheSchema = s.L3CacheSchemaRoot, s.L3CacheSchema
	}
	if intelrdt.IsMBAEnabled() {
		out.MemBwInfo = (*types.MemBwInfo)(s.MemBwInfo)
		out.MemBwSchemaRoot, out.MemBwSchema = s.MemBwSchemaRoot, s.MemBwSchema
	}
	if intelrdt.IsMBMEnabled() {
		out.MBMStats = s.MBMStats
	}
	if intelrdt.IsCMTEnabled() {
		out.CMTStats = s.CMTStats
	}
	return out
}
