/*
 * sandbox-agent - process 1 of a sandbox: forks what the host asks for, inside.
 *
 * SYNOPSIS
 *	Started by the runtime as process 1 of a pid namespace, from a sealed
 *	memfd, with /dev/null at 0-2, its own binary at 3 and the control
 *	socket at 4. It takes no arguments and reads no environment.
 *
 * LIFE CYCLE
 *	1. start(): the surroundings are checked, privileges are shed.
 *	2. HELLO with the protocol's version goes to the host.
 *	3. For each request EXEC the agent forks and goes on serving.
 *	   child_run() turns the child into the command, or says why not. Once
 *	   the child has been reaped the agent says EXITED. What the sandbox's
 *	   processes leave behind as orphans is reaped unreported.
 *	4. If the host closes an exec's socket, that command and its process
 *	   group are killed.
 *	5. If the host closes the control socket, the agent exits, and the
 *	   kernel kills everything in its pid namespace.
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
 *	- It keeps no memory of what runs but a pid and a descriptor each, in a
 *	  table of fixed size; what it reads is 20 bytes at a time, from the
 *	  host. The payload is parsed by the child.
 *	- What it can do itself is SETUID, SETGID and KILL within its user
 *	  namespace, under the seccomp filter of the sandbox.
 *
 * EXIT STATUS
 *	0 when the control socket was closed; else the number of the stage that
 *	failed, of which the host was also told.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "event.h"
#include "start.h"

enum {
	MAX_FILES = 5,		/* that one request carries */
	SPARE_FILES = 16,	/* the agent's own and those of one request */
	REAPED_AT_ONCE = 64,
};

/* Marks in epoll's data, beside the indices of the table. */
enum { FROM_CONTROL = MAX_EXECS, FROM_CHILDREN };

/* An exec that has not been reaped. Free while pid is 0. */
static struct exec {
	pid_t pid;
	int socket;	/* -1 once the host has closed its end */
} execs[MAX_EXECS];

/* How many execs fit: fewer than MAX_EXECS under a low RLIMIT_NOFILE. */
static size_t capacity;

static bool watch(int fd, size_t mark)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u32 = (uint32_t)mark };

	return epoll_ctl(LOOP, EPOLL_CTL_ADD, fd, &e) == 0;
}

/*
 * hang_up stops watching before it closes: a child that has just been forked
 * may hold the socket a moment longer, and would keep it in the epoll set.
 */
static void hang_up(struct exec *x)
{
	if (x->socket < 0)
		return;
	epoll_ctl(LOOP, EPOLL_CTL_DEL, x->socket, NULL);
	close(x->socket);
	x->socket = -1;
}

static struct exec *exec_of(pid_t pid)
{
	for (size_t i = 0; i < capacity; i++)
		if (execs[i].pid == pid)
			return &execs[i];
	return NULL;
}

static uint64_t microseconds(struct timeval t)
{
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

static void report_exit(struct exec *x, int status, const struct rusage *usage)
{
	struct event e = {
		.kind = EVENT_EXITED,
		.value = status,
		.user_us = microseconds(usage->ru_utime),
		.system_us = microseconds(usage->ru_stime),
		.max_rss_kib = (uint64_t)usage->ru_maxrss,
	};

	if (x->socket >= 0)
		send_event(x->socket, &e, -1);
	hang_up(x);
	x->pid = 0;
}

/* reap takes some children that have ended; true if there may be more. */
static bool reap(void)
{
	for (int i = 0; i < REAPED_AT_ONCE; i++) {
		struct rusage usage;
		struct exec *x;
		int status;
		pid_t pid = wait4(-1, &status, WNOHANG | __WALL, &usage);

		if (pid <= 0)
			return false;
		x = exec_of(pid);
		if (x)
			report_exit(x, status, &usage);
	}
	return true;
}

/*
 * fork_exec answers a request that is in order. The watch comes before the
 * fork, so that an exec that runs is one the host can reach.
 */
static void fork_exec(const struct exec_request *request)
{
	struct exec *x = exec_of(0);
	pid_t pid;

	if (!x) {
		send_failure(request->exec, EVENT_FAILED, STAGE_TABLE, EAGAIN);
		close(request->exec);
		return;
	}
	x->socket = request->exec;
	pid = watch(request->exec, (size_t)(x - execs)) ? fork() : -1;
	if (pid == 0)
		child_run(request);
	if (pid < 0) {
		send_failure(request->exec, EVENT_FAILED, STAGE_FORK, errno);
		hang_up(x);
		return;
	}
	x->pid = pid;
}

/*
 * collect takes the descriptors out of m, which has room for MAX_FILES. The
 * kernel puts all of them into one control message, and no other is asked for.
 */
static size_t collect(struct msghdr *m, int fds[MAX_FILES])
{
	struct cmsghdr *c = CMSG_FIRSTHDR(m);
	size_t n = 0;

	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return 0;
	for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len &&
	     n < MAX_FILES; at += sizeof(int))
		memcpy(&fds[n++], (char *)c + at, sizeof(int));
	return n;
}

/*
 * assign gives the n descriptors their names, in the order in which they are
 * sent; false if they are not what the mask of stdio says.
 */
static bool assign(struct exec_request *x, const int *fds, size_t n, const struct request *r)
{
	size_t at = 2;

	if (n < at || (r->stdio & ~(uint32_t)STDIO_ALL) != 0)
		return false;
	*x = (struct exec_request){ fds[0], fds[1], { -1, -1, -1 }, r->payload };
	for (int i = 0; i < 3; i++) {
		if (!(r->stdio & (1U << i)))
			continue;
		if (at == n)
			return false;
		x->stdio[i] = fds[at++];
	}
	return at == n;
}

/* Whether an error of recv(2) leaves the socket in order. */
static bool passes(int error)
{
	return error == EAGAIN || error == EINTR || error == ENOMEM || error == ENOBUFS;
}

/* serve_control takes one message. The end of the host is the agent's. */
static void serve_control(void)
{
	union {
		char bytes[CMSG_SPACE(MAX_FILES * sizeof(int))];
		struct cmsghdr align;
	} control;
	int fds[MAX_FILES] = { -1, -1, -1, -1, -1 };
	struct request r;
	struct iovec body = { &r, sizeof(r) };
	struct msghdr m = {
		.msg_iov = &body, .msg_iovlen = 1,
		.msg_control = control.bytes,
		/* Not CMSG_SPACE, whose padding has room for one more. */
		.msg_controllen = CMSG_LEN(MAX_FILES * sizeof(int)),
	};
	struct exec_request x;
	ssize_t size = recvmsg(CONTROL, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	size_t n, kept = 0;

	if (size < 0 && passes(errno))
		return;
	if (size <= 0)
		_exit(0);
	n = collect(&m, fds);
	if (size == sizeof(r) && r.kind == REQUEST_EXEC &&
	    !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && assign(&x, fds, n, &r)) {
		fork_exec(&x);
		kept = 1; /* the exec's socket is the table's now, or closed */
	} else if (n > 0) {
		send_failure(fds[0], EVENT_FAILED, STAGE_REQUEST, EINVAL);
	}
	for (size_t i = kept; i < n; i++)
		close(fds[i]);
}

/*
 * serve_exec takes one message about an exec. Its pid is not reaped yet, so
 * that it is nobody else's. What is not a signal is ignored, here or by kill(2).
 */
static void serve_exec(struct exec *x)
{
	struct request r;
	ssize_t size = recv(x->socket, &r, sizeof(r), MSG_DONTWAIT | MSG_TRUNC);

	if (size < 0 && passes(errno))
		return;
	if (size <= 0) {
		hang_up(x);
		kill(-x->pid, SIGKILL);
		kill(x->pid, SIGKILL); /* before its setsid(2) it leads no group */
		return;
	}
	if (size == sizeof(r) && r.kind == REQUEST_SIGNAL && r.group <= 1)
		kill(r.group ? -x->pid : x->pid, (int)r.signal);
}

static void make_room(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) < 0)
		die(STAGE_LOOP, errno);
	if (files.rlim_cur <= SPARE_FILES)
		die(STAGE_LOOP, EMFILE);
	capacity = MAX_EXECS;
	if (files.rlim_cur - SPARE_FILES < capacity)
		capacity = files.rlim_cur - SPARE_FILES;
}

int main(void)
{
	struct event hello = { .kind = EVENT_HELLO, .value = PROTOCOL_VERSION };
	bool more = false;

	start();
	make_room();
	if (!watch(CONTROL, FROM_CONTROL) || !watch(CHILDREN, FROM_CHILDREN))
		die(STAGE_LOOP, errno);
	send_event(CONTROL, &hello, -1);
	for (;;) {
		struct signalfd_siginfo info;
		struct epoll_event e;

		/*
		 * One event at a time: the one after it may be about an exec
		 * that this one ends.
		 */
		if (epoll_wait(LOOP, &e, 1, more ? 0 : -1) == 1) {
			if (e.data.u32 == FROM_CONTROL)
				serve_control();
			else if (e.data.u32 != FROM_CHILDREN)
				serve_exec(&execs[e.data.u32]);
			else if (read(CHILDREN, &info, sizeof(info)) > 0)
				more = true;
		}
		if (more)
			more = reap();
	}
}
