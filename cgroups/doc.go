// Package cgroups looks after the groups above and below the group that a sandbox
// runs in. The sandbox's own group is libcontainer's, which creates it and
// writes its limits; this package makes the parent of such groups, says which
// limits the host enforces, reads statistics and events, freezes, kills and
// deletes, lists the groups that a crashed run left, and makes a leaf below the group for
// each command that runs there. Of a sandbox's group it makes the directories that the sandbox
// sees (Group.Views), and libcontainer makes the rest. It puts nothing into leaves itself, and
// knows nothing of sandboxes.
//
// For most uses:
//
//	host, err := cgroups.Probe()
//	limits, err := host.EnsureParent("/sandbox-runtime", 0)
//	// … libcontainer makes /sandbox-runtime/NAME and starts a process there …
//	group, err := host.Open("/sandbox-runtime/NAME")
//	err = group.Kill(ctx)
//	stats, err := group.Stats()
//	events, err := group.Events()
//	err = group.Delete(ctx)
//
// And for a command beside others in it:
//
//	err = group.Divide(pid, uid) // once, with the group's first process
//	leaf, err := group.CreateLeaf("exec-1", cgroups.LeafOptions{Pids: 100, Owner: uid})
//	err = leaf.Limit(cgroups.LeafLimits{Memory: 64 << 20})
//	dir, tasks := leaf.Join() // that process forks a child that joins through these
//	err = leaf.Kill(ctx)
//	usage, err := leaf.Usage()
//	err = leaf.Delete(ctx) // or, on v1, leaf, err = leaf.Renew("exec-2", usage)
//
// It works on cgroup v2, on v1, and on hybrid hosts, where the controllers are
// on v1 and a v2 hierarchy without them is mounted beside. Paths are relative
// to the roots of the hierarchies. It needs Linux 5.6 (openat2(2)) and, to
// change anything, the right to write the hierarchies.
//
// # Files
//
// The table has the files of each answer. "lib" marks a file that is read or written by
// github.com/containerd/cgroups/v3.
//
//	answer           v1, hybrid                                        v2
//	limits memory    memory.limit_in_bytes, memory.memsw.…             memory.max, memory.swap.max
//	limits sockets   memory.kmem.tcp.limit_in_bytes                    as memory
//	limits cpu       cpu.cfs_quota_us, cpu.cfs_period_us               cpu.max
//	limits pids      pids.max                                          pids.max
//	limits io        blkio.throttle.read_bps_device, …: looked for     io.max: looked for
//	hierarchy        lib cpuset.cpus, cpuset.mems; memory.use_hierarchy cgroup.subtree_control
//	CPU              lib cpuacct.usage                                 lib cpu.stat usage_usec
//	Memory           lib memory.usage_in_bytes                         lib memory.current
//	MemoryPeak       lib memory.max_usage_in_bytes                     lib memory.peak (5.19)
//	Pids             lib pids.current                                  lib pids.current
//	PidsPeak         pids.peak (6.1)                                   pids.peak (6.1)
//	IORead, …        blkio.throttle.io_service_bytes_recursive         lib io.stat rbytes, wbytes
//	OOMKills         memory.oom_control oom_kill (4.13), summed        memory.events oom_kill
//	MetMemoryLimit   memory.max_usage_in_bytes, memory.memsw.…         memory.events oom
//	PidsLimitHits    pids.events max, summed                           pids.events max (before 6.11 summed)
//	Freeze, Thaw     freezer.state                                     cgroup.freeze (5.2), cgroup.events
//	Kill             cgroup.procs, freezer.state, SIGKILL by pidfd     cgroup.kill (5.14), else as v1
//	Procs            cgroup.procs of every hierarchy, nested groups    cgroup.procs, nested groups
//	Leaf.Usage       cpuacct.usage, memory.max_usage_in_bytes,         cpu.stat, memory.peak (5.19),
//	                 memory.oom_control, pids.events, blkio as above   memory.events, pids.events, io.stat
//	Leaf.Limit       memory.limit_in_bytes, memory.memsw.…, pids.max,  memory.max, memory.swap.max, pids.max,
//	                 cpu.cfs_quota_us, cpu.cfs_period_us, memory.kmem… cpu.max
//	repeated limits  memory.limit_in_bytes, cpu.cfs_quota_us           memory.max, cpu.max
//	Leaf.Join        tasks                                             the directory (clone3, 5.7)
//	Leaf.Kill        pids.max, cgroup.procs, SIGKILL by pidfd          cgroup.kill (5.14), else as Kill
//
// "Summed" is over the group and those below it, because the file counts for
// the group alone. memory.failcnt is no OOM event: it counts charges that met
// the limit, and reclaim mostly makes room then. On a hybrid host Kill uses
// cgroup.kill of the v2 hierarchy first and v1's files for the rest.
//
// # Leaves
//
// Let S be the sandbox's group, with the limits that libcontainer wrote.
//
// On v1 a leaf is the directory S/NAME in the hierarchies of pids, memory,
// cpuacct and blkio, of each once where several are mounted together, and of
// cpu once it is given a limit of processor time. In all others its processes
// stay in S, as children of S's first process; so freezing S stops them. A
// process joins by writing "0" to the tasks files in the order of Leaf.Join.
// This takes no lock that all forks share. The kernel checks the rights of the
// process that opened the files. pids comes first, so that Kill can forbid the forks of
// every process in the leaf. Limits of S hold for its leaves, save those of disk traffic, which
// on v1 bind no group below: where S has such a limit when a leaf is made, the
// leaf stays out of blkio, its processes are throttled with S, and its traffic
// is not known. Leaves that were made before S got its first such limit escape
// it: a caller that sets one on S deletes the spare ones. Where the kernel counts no
// traffic (Group.Stats, IORead) a leaf stays out of blkio too. Renew makes the
// leaf of the next process out of one that has ended, by resetting the values it has
// counted and renaming it.
//
// On v2 Divide moves S's first process, the agent, to S/agent, since a group
// with processes has no controllers for those below, and leaves are beside it.
// Processes are born in a leaf, by clone3(2) with its directory. Out of memory,
// a leaf's processes are killed together (memory.oom.group). With cpu enabled
// the agent has as large a share of the processors as each leaf has.
//
// Rights to move processes on v2, where S is the root of the sandbox's cgroup
// namespace and the host mounts cgroup2 with nsdelegate:
//
//   - The agent's id owns the cgroup.procs of S, of S/agent and of each leaf,
//     and nothing else: it can start or move processes of the sandbox in or
//     between these groups, all within the limits of S. It cannot bring any to
//     S (no internal processes), nor out of S (nsdelegate; without it: the
//     groups above S are not its own), and cannot change a limit, freeze, kill,
//     or make and remove groups.
//   - Commands run under other ids and own nothing there. Root of the sandbox's
//     user namespace has no right over these files either, since their group is
//     the host's (capabilities(7), "Interaction of user namespaces and
//     capabilities": both ids have to be mapped). No command may be given the
//     agent's id, nor CAP_SETUID with which to take it.
//   - With the directories that the agent gets, it can reach only S and the groups
//     below: they are opened on a mount of S that is in no namespace.
//
// On v1 the agent holds tasks files and can write any process of its pid
// namespace into those leaves whose files it holds; commands hold none. An
// attacker in control of the agent can only move processes into a wrong leaf.
// Their use is counted there, and a kill of that leaf kills them. If the agent
// shares the host's pid namespace, these can be processes of the host.
//
// An exec by libcontainer into a divided S lands in S/agent: the kernel refuses
// S, and libcontainer then takes the group of the first process.
//
// Authority: Linux Documentation/admin-guide/cgroup-v2.rst ("Core Interface
// Files", "Controllers"), cgroup-v1/memory.rst, pids.rst, cpuacct.rst,
// cpusets.rst, blkio-controller.rst, freezer-subsystem.rst in
// Documentation/admin-guide, and Documentation/scheduler/sched-bwc.rst.
//
// # Limits of the library
//
// It creates groups on v1, and reads most of the statistics. But where enabling
// controllers on v2 fails it gives the last error and not the
// first; Freeze on v2 does not wait until the processes stand still, and on v1
// waits without end; Kill exists on v2 only, does not wait either, and logs;
// Delete removes by name all groups below and has its own idea of patience;
// block I/O on v1 leaves nested groups out; and there is no pids.peak, no
// pids.events, and no telling a file that is missing from a zero.
package cgroups
