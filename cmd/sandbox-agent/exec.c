/*
 * exec.c - the execs that run, and the detached ones that are kept.
 *
 * The table has a place for each socket of an exec. That of an attached one is
 * its life: when the host hangs up, the command is killed. Those of a detached
 * one, none or several, only hear of it and pass signals on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "child.h"
#include "detached.h"
#include "drain.h"
#include "event.h"
#include "exec.h"
#include "loop.h"
#include "start.h"

/* The descriptors of the agent itself, every host connected, during one request. */
enum { SPARE_FILES = 8 + MAX_CONNECTIONS + MAX_FILES + 4 };

/* A place in the table. Free while pid is 0 and of is NULL. */
static struct exec {
	pid_t pid;		/* of an attached exec, until it is reaped */
	int socket;		/* -1 once the host has closed its end */
	uint32_t refused;	/* of an attached exec: REFUSED_ bits */
	struct detached *of;	/* of a detached exec, whose pid is there */
} execs[MAX_EXECS];

/* How many places there are: fewer than MAX_EXECS under a low RLIMIT_NOFILE. */
static size_t capacity;

/* Places above this were never taken, and are not looked at. */
static size_t used;

void exec_make_room(void)
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

/*
 * take finds a place for a socket and watches it: an exec that runs is one the
 * host can reach. Where it returns NULL the host has been told, on its verdict
 * socket, and hung up on.
 */
static struct exec *take(int socket, int verdict)
{
	size_t i = 0;

	while (i < used && (execs[i].pid || execs[i].of))
		i++;
	errno = EAGAIN;
	if (i == capacity || !loop_watch(socket, FROM_EXECS + i)) {
		send_failure(verdict, EVENT_FAILED, STAGE_TABLE, errno);
		close(socket);
		return NULL;
	}
	if (i == used)
		used++;
	execs[i] = (struct exec){ .socket = socket };
	return &execs[i];
}

/* let_go hangs up and frees the place. */
static void let_go(struct exec *x)
{
	loop_close(&x->socket);
	x->pid = 0;
	x->of = NULL;
}

/* tell_all tells each host that is attached, and lets go of it if that is all. */
static void tell_all(struct detached *d, const struct event *e)
{
	for (size_t i = 0; i < used; i++) {
		struct exec *x = &execs[i];

		if (x->of != d)
			continue;
		if (e)
			send_event(x->socket, e, -1);
		if (!e || (!d->pid && !d->drainer))
			let_go(x);
	}
}

/*
 * forget frees the place. After the end of the command the host removes the files with
 * the output, so nothing may write to them any more: a neighbour that has the pipes open
 * keeps the drainer alive.
 */
static void forget(struct detached *d)
{
	tell_all(d, NULL);
	if (d->kept && !d->pid && d->drainer > 0)
		kill(d->drainer, SIGKILL);
	d->kept = false;
}

/* keep makes x one of a detached exec that is not there yet. */
static enum stage keep(struct exec *x, const uint8_t id[ID_SIZE])
{
	struct detached *d = detached_find(id);

	errno = EEXIST;
	if (d)
		return STAGE_ID;
	errno = EAGAIN;
	d = detached_place();
	if (!d)
		return STAGE_TABLE;
	forget(d);
	*d = (struct detached){ .kept = true };
	memcpy(d->id, id, ID_SIZE);
	x->of = d;
	return 0;
}

/*
 * fork_into forks into a cgroup of v2, where one is given: no other moment is
 * early enough for the group's limits, and none fails as safely. Plain, with
 * memory of the child's own: a vfork waits for a child that a neighbour may
 * stop.
 */
static pid_t fork_into(int cgroup)
{
	struct clone_args a = {
		.flags = CLONE_INTO_CGROUP,
		.exit_signal = SIGCHLD,
		.cgroup = (unsigned int)cgroup,
	};

	return cgroup < 0 ? fork() : (pid_t)syscall(SYS_clone3, &a, sizeof(a));
}

/*
 * run forks the command, and for a detached one the process that takes its
 * output. It returns 0, or the stage that is refused, with an errno.
 */
static enum stage run(struct exec *x, struct exec_request *request)
{
	enum stage refusal;
	pid_t pid;

	if (request->detached) {
		refusal = keep(x, request->id);
		if (refusal)
			return refusal;
		x->of->drainer = drain(request);
		if (x->of->drainer < 0)
			return STAGE_OUTPUT;
	}
	pid = fork_into(request->cgroup);
	if (pid == 0)
		child_run(request);
	if (pid < 0)
		return request->cgroup < 0 ? STAGE_FORK : STAGE_CGROUP;
	*(x->of ? &x->of->pid : &x->pid) = pid;
	return 0;
}

void exec_start(struct exec_request *request)
{
	struct exec *x = take(request->exec, request->setup);
	enum stage refusal;

	if (!x)
		return;
	refusal = run(x, request);
	if (refusal) {
		send_failure(request->setup, EVENT_FAILED, refusal, errno);
		if (x->of)
			forget(x->of);
		else
			let_go(x);
	}
	if (request->detached) /* the pipes' ends, which are the command's now */
		for (int i = 1; i < 3; i++)
			if (request->stdio[i] >= 0)
				close(request->stdio[i]);
}

void exec_attach(int socket, const uint8_t id[ID_SIZE])
{
	const struct event attached = { .kind = EVENT_ATTACHED };
	const struct event drained = { .kind = EVENT_DRAINED };
	struct detached *d = detached_find(id);
	struct exec *x;

	if (!d) {
		send_failure(socket, EVENT_FAILED, STAGE_ID, ESRCH);
		close(socket);
		return;
	}
	x = take(socket, socket);
	if (!x)
		return;
	x->of = d;
	send_event(socket, &attached, -1);
	if (d->ended)
		send_event(socket, &d->exit, -1);
	if (!d->drainer)
		send_event(socket, &drained, -1);
	if (!d->pid && !d->drainer)
		let_go(x);
}

void exec_list(int socket)
{
	struct list l;
	size_t size = detached_list(&l);

	send(socket, &l, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void exec_forget(const uint8_t id[ID_SIZE])
{
	struct detached *d = detached_find(id);

	if (d)
		forget(d);
}

/*
 * exec_serve: a pid that is not 0 is not reaped yet, so that it is nobody
 * else's. A number that is no signal is ignored, here or by kill(2).
 */
void exec_serve(size_t index)
{
	struct exec *x = &execs[index];
	pid_t pid = x->of ? x->of->pid : x->pid;
	struct request r;
	ssize_t size = recv(x->socket, &r, sizeof(r), MSG_DONTWAIT | MSG_TRUNC);

	if (size < 0 && event_passes(errno))
		return;
	if (size <= 0) {
		loop_close(&x->socket);
		if (x->of) {
			x->of = NULL;
			return;
		}
		kill(-pid, SIGKILL);
		kill(pid, SIGKILL); /* before its setsid(2) it leads no group */
		return;
	}
	if (pid && request_kind(&r, (size_t)size, 0, false) == REQUEST_SIGNAL)
		kill(r.group ? -pid : pid, (int)r.signal);
}

static uint64_t microseconds(struct timeval t)
{
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

/* detached_reaped is told of the command's end, or of its drainer's. */
static void detached_reaped(struct detached *d, pid_t pid, const struct event *exit)
{
	const struct event drained = { .kind = EVENT_DRAINED };

	if (d->pid == pid) {
		detached_end(d, exit);
		tell_all(d, &d->exit);
	} else {
		d->drainer = 0;
		tell_all(d, &drained);
	}
}

/* refusals returns where the refused calls of a running exec are noted; NULL if there is none. */
static uint32_t *refusals(pid_t pid)
{
	struct detached *d = detached_of(pid);

	if (d)
		return d->pid == pid ? &d->refused : NULL;
	for (size_t i = 0; i < used; i++)
		if (execs[i].pid == pid)
			return &execs[i].refused;
	return NULL;
}

void exec_refused(pid_t session, uint32_t refused)
{
	uint32_t *noted = session > 0 ? refusals(session) : NULL;

	if (noted)
		*noted |= refused;
}

void exec_reaped(pid_t pid, int status, const struct rusage *usage)
{
	const uint32_t *refused = refusals(pid);
	const struct event exit = {
		.refused = refused ? *refused : 0,
		.kind = EVENT_EXITED,
		.value = status,
		.user_us = microseconds(usage->ru_utime),
		.system_us = microseconds(usage->ru_stime),
		.max_rss_kib = (uint64_t)usage->ru_maxrss,
	};
	struct detached *d = detached_of(pid);

	if (d) {
		detached_reaped(d, pid, &exit);
		return;
	}
	for (size_t i = 0; i < used; i++) {
		if (execs[i].pid != pid)
			continue;
		if (execs[i].socket >= 0)
			send_event(execs[i].socket, &exit, -1);
		let_go(&execs[i]);
		return;
	}
}
