/* connection.c - the hosts that are connected. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "connection.h"
#include "event.h"
#include "exec.h"
#include "filter.h"
#include "loop.h"
#include "start.h"

static struct connection {
	int socket;	/* -1 where there is none */
	bool tied;
} connections[MAX_CONNECTIONS];

/* greet is the one message that a host waits for before it asks for anything. */
static bool greet(int socket, size_t place)
{
	const struct event hello = { .kind = EVENT_HELLO, .value = PROTOCOL_VERSION };

	return loop_watch(socket, FROM_CONNECTIONS + place) && send_event(socket, &hello, -1);
}

void connections_open(int first, bool tied)
{
	for (size_t i = 0; i < MAX_CONNECTIONS; i++)
		connections[i].socket = -1;
	if (!greet(first, 0))
		die(STAGE_LOOP, errno);
	connections[0] = (struct connection){ first, tied };
}

/*
 * accept_one stops looking at a listener that a host has shut down: every copy of
 * it feels that, and epoll(7) would tell of it for ever.
 */
static int accept_one(void)
{
	struct pollfd state = { .fd = LISTENER };
	int socket = accept4(LISTENER, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (socket < 0 && poll(&state, 1, 0) > 0 && (state.revents & POLLHUP))
		loop_forget(LISTENER);
	return socket;
}

void connections_accept(void)
{
	int socket = accept_one();
	size_t i = 0;

	if (socket < 0)
		return;
	while (i < MAX_CONNECTIONS && connections[i].socket >= 0)
		i++;
	if (i == MAX_CONNECTIONS)
		send_failure(socket, EVENT_FATAL, STAGE_CONNECTIONS, EAGAIN);
	if (i == MAX_CONNECTIONS || !greet(socket, i)) {
		close(socket);
		return;
	}
	connections[i] = (struct connection){ .socket = socket };
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

/* withhold takes the set-group-ID bit from all execs that start later. */
static void withhold(int socket)
{
	const struct event done = { .kind = EVENT_WITHHELD };

	if (filter_withhold())
		send_event(socket, &done, -1);
	else
		send_failure(socket, EVENT_FAILED, STAGE_NARROW, errno);
}

/* answer carries out a request, and returns how many of the descriptors it took. */
static size_t answer(struct connection *c, const struct request *r, uint32_t kind, const int *fds, size_t n)
{
	struct exec_request x;

	switch (kind) {
	case REQUEST_EXEC:
		request_exec(&x, r, fds);
		exec_start(&x);
		return 1;
	case REQUEST_ATTACH:
		exec_attach(fds[0], r->id);
		return 1;
	case REQUEST_LIST:
		exec_list(fds[0]);
		return 0;
	case REQUEST_WITHHOLD:
		withhold(fds[0]);
		return 0;
	case REQUEST_TIE:
		c->tied = true;
		return 0;
	case REQUEST_FORGET:
		exec_forget(r->id);
		return 0;
	default:
		if (n > 0)
			send_failure(fds[0], EVENT_FAILED, STAGE_REQUEST, EINVAL);
		return 0;
	}
}

static void end(struct connection *c)
{
	if (c->tied)
		leave();
	loop_close(&c->socket);
}

void connections_serve(size_t index)
{
	union {
		char bytes[CMSG_SPACE(MAX_FILES * sizeof(int))];
		struct cmsghdr align;
	} control;
	int fds[MAX_FILES];
	struct connection *from = &connections[index];
	struct request r;
	struct iovec body = { &r, sizeof(r) };
	struct msghdr m = {
		.msg_iov = &body, .msg_iovlen = 1,
		.msg_control = control.bytes,
		/* Not CMSG_SPACE, whose padding has room for one more. */
		.msg_controllen = CMSG_LEN(MAX_FILES * sizeof(int)),
	};
	ssize_t size = recvmsg(from->socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	uint32_t kind = 0;
	size_t n;

	if (size < 0 && event_passes(errno))
		return;
	n = size < 0 ? 0 : collect(&m, fds);
	if (size <= 0) { /* an empty message looks like the end, and is one */
		end(from);
		for (size_t i = 0; i < n; i++)
			close(fds[i]);
		return;
	}
	if (!(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		kind = request_kind(&r, (size_t)size, n, true);
	for (size_t i = answer(from, &r, kind, fds, n); i < n; i++)
		close(fds[i]);
}
