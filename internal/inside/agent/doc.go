// Package agent is the host's side of a sandbox's process 1: it holds the agent's program,
// speaks its protocol, and starts commands through it.
//
// For most uses: [Executable] once per process and [New] once per sandbox; give the
// program as descriptor 3 and the guest's socket as descriptor 4 to the process that
// becomes process 1; then [Conn.Ready], [Conn.Start], [Process.Wait].
//
// The agent is the C program of cmd/sandbox-agent. Its agent.c describes its life and why
// code inside cannot harm it; its protocol.h has the messages. It lives among untrusted
// code, so this package treats it as if that code had taken it over: its messages have one
// size, their number is bounded, unexpected descriptors are closed, and no process id is
// taken from it.
//
// The package makes no namespaces, no mounts and no cgroups, and it ends no sandbox: the
// caller enforces timeouts, by killing the cgroup, and needs no agent for that.
package agent
