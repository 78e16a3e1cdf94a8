/*
 * sandbox-agent - process 1 of a sandbox: forks the commands of the host, inside.
 *
 * SYNOPSIS
 *	Started by the runtime as process 1 of a pid namespace, from a sealed
 *	memfd, with /dev/null at 0-2, its own binary at 3 and the first control
 *	socket at 4. These three may be missing: at 5 a socket that listens for
 *	more connections, at 6 the file system with the sandbox's writes, at 7
 *	the top directory of that file system, open for reading. At 8 may be a
 *	file with the sandbox's seccomp filter. The agent reads no environment.
 *	Its arguments may be the word "filters": then commands may load seccomp
 *	filters; the word "shared": then the agent is no process 1, and shares
 *	the pid namespace of the host; and the word "group-ids": then the
 *	sandbox's filter allows the set-group-ID bit, which a host can
 *	withhold from later commands.
 *
 * LIFE CYCLE
 *	1. start() checks the process, drops privileges and loads the filter.
 *	   Without a filter the agent does not serve.
 *	2. The agent sends HELLO with the protocol's version to the host, and to
 *	   each host that connects later.
 *	3. For each request EXEC the agent forks and goes on serving.
 *	   child_run() turns the child into the command, or reports the reason
 *	   of a failure. After the agent has reaped the child, it sends EXITED.
 *	   It reaps orphans of the sandbox's processes without a report.
 *	4. If the host closes an exec's socket, the agent kills that command and
 *	   its process group. A detached exec goes on: its output goes to files,
 *	   its exit is kept, and a host can attach later to get both.
 *	5. If a host that has sent TIE closes its connection, the agent exits. An
 *	   agent without a listener exits with its first connection. The kernel
 *	   then kills all processes in the pid namespace. In a shared pid
 *	   namespace the agent kills all processes of its user namespace first.
 *	protocol.h has the messages, stages.h the reasons of a refusal.
 *
 * WHY NO PROCESS INSIDE CAN HARM IT
 *	- Signals: the kernel drops all signals from inside the pid namespace to
 *	  a process 1 without handlers, also SIGKILL and SIGSTOP. And no exec
 *	  may have the agent's id, so no process inside may signal it.
 *	- In a shared pid namespace the kernel drops no signals. The ids alone
 *	  protect the agent there, also from id 0 inside, which has no
 *	  capabilities. The agent blocks all signals, so that only SIGKILL and
 *	  SIGSTOP of the host's root reach it. It is the subreaper of its
 *	  descendants: their orphans become its children.
 *	- ptrace, /proc/1/mem, pidfd_getfd, prlimit and the like need the
 *	  agent's id, or capabilities over the agent. No exec has either, and
 *	  the agent is not dumpable. The agent has no right to read its own
 *	  binary. For this reason the writable files of /proc/1 belong to a root
 *	  outside the sandbox, and not to id 0 inside.
 *	- No process inside holds a socket of the agent: children have only 0-2.
 *	  The socket that a child has until execve(2) is not one of the agent's.
 *	- The agent waits for no other process: it uses fork, since vfork waits
 *	  for a child that another process may stop. It sends without blocking.
 *	  It reaps a bounded number of children between two checks of its
 *	  sockets.
 *	- For each exec it keeps only a pid and a descriptor, and the exit of a
 *	  detached exec, in tables of fixed size. It reads 56 bytes at a time,
 *	  and only from the host. The child parses the payload. Another child
 *	  copies the output of a detached exec.
 *	- A call that waits for its answer is refused without a look at anything
 *	  but its number, one call in a turn: notify.c.
 *	- Its capabilities are SETUID, SETGID, KILL and SYS_CHROOT within its
 *	  user namespace, under the seccomp filter of the sandbox.
 *
 * EXIT STATUS
 *	0 when the connection that it was tied to was closed; otherwise the number
 *	of the stage that failed. The host gets this number, too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connection.h"
#include "exec.h"
#include "filter.h"
#include "loop.h"
#include "notify.h"
#include "start.h"

enum { REAPED_AT_ONCE = 64 };

/* reap takes some children that have ended; true if there may be more. */
static bool reap(void)
{
	for (int i = 0; i < REAPED_AT_ONCE; i++) {
		struct rusage usage;
		int status;
		pid_t pid = wait4(-1, &status, WNOHANG | __WALL, &usage);

		if (pid <= 0)
			return false;
		exec_reaped(pid, status, &usage);
	}
	return true;
}

/* serve handles a mark of loop_wait. It returns true if children may have ended. */
static bool serve(size_t mark)
{
	struct signalfd_siginfo info;

	if (mark < FROM_CONNECTIONS)
		exec_serve(mark - FROM_EXECS);
	else if (mark < FROM_LISTENER)
		connections_serve(mark - FROM_CONNECTIONS);
	else if (mark == FROM_LISTENER)
		connections_accept();
	else if (mark == FROM_NOTIFY)
		notify_serve();
	else
		return read(CHILDREN, &info, sizeof(info)) > 0;
	return false;
}

/* read_arguments returns whether the agent shares its pid namespace with the host. */
static bool read_arguments(int argc, char **argv)
{
	bool shared = false;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "filters") == 0)
			filter_allow_filters();
		if (strcmp(argv[i], "shared") == 0)
			shared = true;
		if (strcmp(argv[i], "group-ids") == 0)
			filter_await_withhold();
	}
	return shared;
}

int main(int argc, char **argv)
{
	bool listener, more = false;

	listener = start(read_arguments(argc, argv));
	exec_make_room();
	if (!loop_watch(CHILDREN, FROM_CHILDREN) ||
	    (listener && !loop_watch(LISTENER, FROM_LISTENER)))
		die(STAGE_LOOP, errno);
	notify_open();
	connections_open(FIRST, !listener);
	for (;;) {
		int64_t mark = loop_wait(more);

		if (mark >= 0 && serve((size_t)mark))
			more = true;
		if (more)
			more = reap();
	}
}
