/*
 * sandbox-agent - process 1 of a sandbox: forks the commands of the host, inside.
 *
 * SYNOPSIS
 *	Started by the runtime as process 1 of a pid namespace, from a sealed
 *	memfd, with /dev/null at 0-2, its own binary at 3 and the first control
 *	socket at 4. At 5 may be a socket that listens for more, at 6 the file
 *	system of what the sandbox writes, at 7 its top open for reading, at 8 a
 *	file with the sandbox's seccomp filter. It reads no environment. Its one
 *	argument may be the word "filters": commands may load seccomp filters.
 *
 * LIFE CYCLE
 *	1. start(): the surroundings are checked, privileges are shed, the
 *	   filter is loaded. Under none the agent does not serve.
 *	2. HELLO with the protocol's version goes to the host, and to each that
 *	   connects later.
 *	3. For each request EXEC the agent forks and goes on serving.
 *	   child_run() turns the child into the command, or says why not. Once
 *	   the child has been reaped the agent says EXITED. What the sandbox's
 *	   processes leave behind as orphans is reaped unreported.
 *	4. If the host closes an exec's socket, that command and its process
 *	   group are killed. A detached exec goes on: its output goes to files,
 *	   its exit is kept, and a host that attaches later hears of both.
 *	5. Hosts come and go. If one goes that said TIE, or without a listener
 *	   the first, the agent exits, and the kernel kills everything in its
 *	   pid namespace.
 *	protocol.h has the messages, stages.h what can be refused.
 *
 * WHY WHAT RUNS INSIDE CANNOT HARM IT
 *	- Signals: process 1 without handlers is sent none from inside its pid
 *	  namespace, not even SIGKILL and SIGSTOP. Beyond that its id is one
 *	  that no exec may have, so that nothing inside may signal it at all.
 *	- ptrace, /proc/1/mem, pidfd_getfd, prlimit and their like want the
 *	  agent's id or capabilities over it; no exec has either, and the agent
 *	  is not dumpable. The host makes its binary unreadable to it, with the
 *	  effect that even what /proc/1 lets a file's owner write belongs to a
 *	  root outside the sandbox, and not to id 0 inside.
 *	- Nothing that runs inside holds a socket of the agent's: children have
 *	  0-2 and nothing else, and the socket that a child has until execve(2)
 *	  is another than the agent's.
 *	- The agent waits for nobody: it forks plainly (a vfork waits for a
 *	  child that a neighbour may stop), sends without blocking, and reaps a
 *	  bounded number of children between two looks at its sockets.
 *	- It keeps no memory of what runs but a pid and a descriptor each, and
 *	  the exits of detached execs, in tables of fixed size; what it reads is
 *	  56 bytes at a time, from the host. The payload is parsed by the child,
 *	  the output of a detached exec is copied by another.
 *	- What it can do itself is SETUID, SETGID, KILL and SYS_CHROOT within its
 *	  user namespace, under the seccomp filter of the sandbox.
 *
 * EXIT STATUS
 *	0 when the connection that it was tied to was closed; else the number of the stage that
 *	failed, of which the host was also told.
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

/* serve takes what loop_wait returned; true if children may have ended. */
static bool serve(size_t mark)
{
	struct signalfd_siginfo info;

	if (mark < FROM_CONNECTIONS)
		exec_serve(mark - FROM_EXECS);
	else if (mark < FROM_LISTENER)
		connections_serve(mark - FROM_CONNECTIONS);
	else if (mark == FROM_LISTENER)
		connections_accept();
	else
		return read(CHILDREN, &info, sizeof(info)) > 0;
	return false;
}

int main(int argc, char **argv)
{
	bool listener, more = false;

	if (argc == 2 && strcmp(argv[1], "filters") == 0)
		filter_allow_filters();
	listener = start();
	exec_make_room();
	if (!loop_watch(CHILDREN, FROM_CHILDREN) ||
	    (listener && !loop_watch(LISTENER, FROM_LISTENER)))
		die(STAGE_LOOP, errno);
	connections_open(FIRST, !listener);
	for (;;) {
		int64_t mark = loop_wait(more);

		if (mark >= 0 && serve((size_t)mark))
			more = true;
		if (more)
			more = reap();
	}
}
