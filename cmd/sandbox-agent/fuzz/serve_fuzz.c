/*
 * serve_fuzz - has the agent serve hosts that send anything, under the
 * sanitizers.
 *
 * The agent's own code, with real sockets and descriptors, but without its start
 * and without processes: what it forks is a number, what it kills must be one
 * of those. Reads scripts from stdin, each a uint32_t length and its bytes, and
 * plays each to its end: after that the agent must have no descriptor and no
 * exec left. It answers with one byte on stdout, how much was forked.
 *
 * A script is steps of an op and a place, a byte each; MESSAGE and SIGNAL have a
 * size, a number of descriptors and a struct request besides.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "child.h"
#include "connection.h"
#include "detached.h"
#include "exec.h"
#include "loop.h"
#include "start.h"

enum { MESSAGE, SIGNAL, HANG_UP, CONNECT, DISCONNECT, REAP, REFUSE, OPS };
enum { HOSTS = 4, ENDS = 512, PIDS = 512 };

static struct sockaddr_un address;
static socklen_t address_size;
static int hosts[HOSTS];
static int ends[ENDS];		/* the host's, of what it passed */
static size_t nends;
static pid_t pids[PIDS];	/* that the agent forked, until they are reaped */
static size_t npids;
static pid_t last_pid = 1000;
static unsigned int forked;
static bool refuse;		/* the next fork */

static void insist(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "serve_fuzz: %s\n", what);
	abort();
}

static pid_t new_pid(void)
{
	if (refuse || npids == PIDS) {
		refuse = false;
		errno = EAGAIN;
		return -1;
	}
	forked++;
	return pids[npids++] = ++last_pid;
}

/* The agent's code is linked with these in place of libc's, by --wrap. */
pid_t __wrap_fork(void);
long __wrap_syscall(long number, ...);
int __wrap_kill(pid_t pid, int signal);

pid_t __wrap_fork(void)
{
	return new_pid();
}

long __wrap_syscall(long number, ...)
{
	insist(number == SYS_clone3, "an unexpected system call");
	return new_pid();
}

int __wrap_kill(pid_t pid, int signal)
{
	(void)signal;
	for (size_t i = 0; i < npids; i++)
		if (pids[i] == pid || pids[i] == -pid)
			return 0;
	insist(false, "kills a process that it has not, or no more");
	return -1;
}

/* These belong to the parts that are left out. */
noreturn void child_run(const struct exec_request *request)
{
	(void)request;
	abort();
}

bool filter_withhold(void)
{
	return true;
}

noreturn void die(enum stage stage, int error)
{
	fprintf(stderr, "serve_fuzz: stage %d: %s\n", (int)stage, strerror(error));
	abort();
}

noreturn void leave(void)
{
	fprintf(stderr, "serve_fuzz: leaves\n");
	abort();
}

static void serve(void)
{
	for (int64_t mark; (mark = loop_wait(true)) >= 0;) {
		if (mark < FROM_CONNECTIONS)
			exec_serve((size_t)mark - FROM_EXECS);
		else if (mark < FROM_LISTENER)
			connections_serve((size_t)mark - FROM_CONNECTIONS);
		else
			connections_accept();
	}
}

static void pass(int socket, const char *bytes, size_t size, size_t n)
{
	union {
		char bytes[CMSG_SPACE(32 * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec body = { (void *)(uintptr_t)bytes, size };
	struct msghdr m = { .msg_iov = &body, .msg_iovlen = 1 };
	int fds[32];

	for (size_t i = 0; i < n; i++) {
		int pair[2];

		if (nends == ENDS || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
			n = i;
		else {
			ends[nends++] = pair[0];
			fds[i] = pair[1];
		}
	}
	if (n > 0) {
		memset(&control, 0, sizeof(control));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fds, n * sizeof(int));
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(n * sizeof(int));
	}
	sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
}

static void connect_host(size_t i)
{
	if (hosts[i] >= 0)
		return;
	hosts[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	insist(connect(hosts[i], (struct sockaddr *)&address, address_size) == 0, "connect(2)");
}

static void hang_up(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void reap(size_t i)
{
	const struct rusage usage = { 0 };
	pid_t pid = pids[i];

	pids[i] = pids[--npids];
	exec_reaped(pid, 0, &usage);
}

/* step plays one message from the bytes that are left, and returns its size. */
static size_t step(const unsigned char *s, size_t left)
{
	struct request r;
	size_t size = 2, place;

	if (left < size)
		return left;
	place = s[1];
	switch (s[0] % OPS) {
	case MESSAGE:
	case SIGNAL:
		if (left < 4 + sizeof(r))
			return left;
		memcpy(&r, s + 4, sizeof(r));
		if (r.kind == REQUEST_TIE)
			r.kind = 99; /* which ends the agent */
		size = s[2] <= sizeof(r) ? s[2] : sizeof(r);
		if (s[0] % OPS == MESSAGE)
			pass(hosts[place % HOSTS], (char *)&r, size, s[3] % 24);
		else if (nends > 0)
			pass(ends[place % nends], (char *)&r, size, s[3] % 3);
		size = 4 + sizeof(r);
		break;
	case HANG_UP:
		if (nends > 0)
			hang_up(&ends[place % nends]);
		break;
	case CONNECT:
		connect_host(place % HOSTS);
		break;
	case DISCONNECT:
		hang_up(&hosts[place % HOSTS]);
		break;
	case REAP:
		if (npids > 0)
			reap(place % npids);
		break;
	case REFUSE:
		refuse = true;
		break;
	}
	serve();
	return size;
}

static size_t descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	size_t n = 0;

	insist(d != NULL, "opendir(3)");
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* clear ends all that a script left, in which the agent may leave nothing. */
static void clear(void)
{
	struct list l;

	while (nends > 0)
		hang_up(&ends[--nends]);
	for (size_t i = 0; i < HOSTS; i++)
		hang_up(&hosts[i]);
	serve();
	while (npids > 0)
		reap(0);
	detached_list(&l);
	for (int32_t i = 0; i < l.event.value; i++)
		exec_forget(l.ids[i]);
	serve();
	detached_list(&l);
	insist(l.event.value == 0, "a detached exec is left");
	refuse = false;
}

static void play(const unsigned char *script, size_t size)
{
	for (size_t i = 0; i < HOSTS; i++)
		connect_host(i);
	serve();
	for (size_t at = 0; at < size;)
		at += step(script + at, size - at);
	clear();
}

static void open_agent(void)
{
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), first[2];

	address.sun_family = AF_UNIX;
	insist(bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t)) == 0 && /* a name of the kernel's choice */
	       listen(listener, 64) == 0, "listen(2)");
	address_size = sizeof(address);
	getsockname(listener, (struct sockaddr *)&address, &address_size);
	insist(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, first) == 0, "socketpair(2)");
	first[0] = fcntl(first[0], F_DUPFD_CLOEXEC, 100); /* stays open */
	first[1] = fcntl(first[1], F_DUPFD_CLOEXEC, 100);
	listener = fcntl(listener, F_DUPFD_CLOEXEC, 100);
	for (int fd = CHILDREN; fd < 20; fd++)
		close(fd);
	insist(dup2(first[1], FIRST) == FIRST && dup2(listener, LISTENER) == LISTENER &&
	       dup2(STDERR_FILENO, CHILDREN) == CHILDREN && epoll_create1(EPOLL_CLOEXEC) == LOOP,
	       "the agent's descriptors");
	close(first[1]);
	close(listener);
	exec_make_room();
	connections_open(FIRST, false);
	insist(loop_watch(LISTENER, FROM_LISTENER), "epoll(7)");
}

int main(void)
{
	uint32_t size;
	size_t before;

	for (size_t i = 0; i < HOSTS; i++)
		hosts[i] = -1;
	open_agent();
	before = descriptors();
	while (fread(&size, sizeof(size), 1, stdin) == 1) {
		unsigned char *script = malloc(size ? size : 1);

		if (!script || fread(script, 1, size, stdin) != size)
			return 2;
		forked = 0;
		play(script, size);
		insist(descriptors() == before, "a descriptor is left");
		putchar(forked < 255 ? (int)forked : 255);
		fflush(stdout);
		free(script);
	}
	return 0;
}
