/* event.c - messages to the host. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "event.h"

bool send_event(int socket, const struct event *e, int pass)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct event copy = *e;
	struct iovec body = { &copy, sizeof(copy) };
	struct msghdr m = { .msg_iov = &body, .msg_iovlen = 1 };

	if (pass >= 0) {
		memset(&control, 0, sizeof(control));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.align), &pass, sizeof(pass));
		m.msg_control = control.bytes;
		m.msg_controllen = sizeof(control.bytes);
	}
	return sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(copy);
}

/*
 * event_passes returns whether a call can succeed after the error. If a host ends
 * before it has read everything, the next call fails once with ECONNRESET. The
 * calls after it return the messages that the host has sent.
 */
bool event_passes(int error)
{
	return error == EAGAIN || error == EINTR || error == ENOMEM ||
	       error == ENOBUFS || error == ECONNRESET;
}

void send_failure(int socket, enum event_kind kind, enum stage stage, int error)
{
	struct event e = { .kind = kind, .stage = stage, .value = error };

	send_event(socket, &e, -1);
}
