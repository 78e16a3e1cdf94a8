// Package agent is the host's side of a sandbox's process 1: it holds the
// agent's program, speaks its protocol, and starts commands through it.
//
// For most uses: [Executable] once per process and [New] once per sandbox; give
// the program as descriptor 3 and the guest's socket as descriptor 4 to the
// process that becomes process 1; then [Conn.Ready], [Conn.Start],
// [Process.Wait].
//
// The agent is the C program of cmd/sandbox-agent, whose agent.c says how it
// lives and why what runs inside cannot harm it, and whose protocol.h has the
// messages. It lives among code nobody trusts, so it is treated here as if that
// code had taken it over: its messages have one size, their number is bounded,
// descriptors that nobody asked for are closed, and no process id is taken from
// it.
//
// The package makes no namespaces, no mounts and no cgroups, and it ends no
// sandbox: a timeout is the caller's, who kills by cgroup and needs no agent
// for it.
package agent
