// Package cgroups looks after what is above and below the group that a sandbox
// runs in. The sandbox's own group is libcontainer's, which creates it and
// writes its limits; this package makes the parent of such groups, says which
// limits the host enforces, reads statistics and events, freezes, kills and
// deletes, and lists what a crashed run left. It does not create a sandbox's
// group, does not put processes into groups, and knows nothing of sandboxes.
//
// For most uses:
//
//	host, err := cgroups.Probe()
//	limits, err := host.EnsureParent("/sandbox-runtime", nil)
//	// … libcontainer makes /sandbox-runtime/NAME and starts a process there …
//	group, err := host.Open("/sandbox-runtime/NAME")
//	err = group.Kill(ctx)
//	stats, err := group.Stats()
//	events, err := group.Events()
//	err = group.Delete(ctx)
//
// It works on cgroup v2, on v1, and on hybrid hosts, where the controllers are
// on v1 and a v2 hierarchy without them is mounted beside. Paths are relative
// to the roots of the hierarchies. It needs Linux 5.6 (openat2(2)) and, to
// change anything, the right to write the hierarchies.
//
// # Files
//
// What each answer comes from. "lib" marks what is read or written through
// github.com/containerd/cgroups/v3.
//
//	what             v1, hybrid                                        v2
//	limits memory    lib memory.limit_in_bytes, memory.memsw.…         lib memory.max, memory.swap.max
//	limits cpu       lib cpu.cfs_quota_us, cpu.cfs_period_us           lib cpu.max
//	limits pids      lib pids.max                                      lib pids.max
//	limits io        blkio.throttle.read_bps_device, …: looked for     io.max: looked for
//	hierarchy        lib cpuset.cpus, cpuset.mems; memory.use_hierarchy cgroup.subtree_control
//	CPU              lib cpuacct.usage                                 lib cpu.stat usage_usec
//	Memory           lib memory.usage_in_bytes                         lib memory.current
//	MemoryPeak       lib memory.max_usage_in_bytes                     lib memory.peak (5.19)
//	Pids             lib pids.current                                  lib pids.current
//	PidsPeak         pids.peak (6.1)                                   pids.peak (6.1)
//	IORead, …        blkio.throttle.io_service_bytes_recursive         lib io.stat rbytes, wbytes
//	OOMKills         memory.oom_control oom_kill (4.13), summed        memory.events oom_kill
//	PidsLimitHits    pids.events max, summed                           pids.events max (before 6.11 summed)
//	Freeze, Thaw     freezer.state                                     cgroup.freeze (5.2), cgroup.events
//	Kill             cgroup.procs, freezer.state, SIGKILL by pidfd     cgroup.kill (5.14), else as v1
//	Procs            cgroup.procs of every hierarchy, nested groups    cgroup.procs, nested groups
//
// "Summed" is over the group and those below it, because the file counts for
// the group alone. memory.failcnt is no OOM event: it counts charges that met
// the limit, which reclaim mostly satisfies. On a hybrid host Kill uses
// cgroup.kill of the v2 hierarchy first and what v1 offers for the rest.
//
// Authority: Linux Documentation/admin-guide/cgroup-v2.rst ("Core Interface
// Files", "Controllers"), cgroup-v1/memory.rst, pids.rst, cpuacct.rst,
// cpusets.rst, blkio-controller.rst, freezer-subsystem.rst in
// Documentation/admin-guide, and Documentation/scheduler/sched-bwc.rst.
//
// # What is not left to the library
//
// It creates groups and writes limits, and reads most of the statistics. But
// where enabling controllers on v2 fails it gives the last error and not the
// first; Freeze on v2 does not wait until the processes stand still, and on v1
// waits without end; Kill exists on v2 only, does not wait either, and logs;
// Delete removes by name whatever is below and has its own idea of patience;
// block I/O on v1 leaves nested groups out; and there is no pids.peak, no
// pids.events, and no telling a file that is missing from a zero.
package cgroups
