/* receive.c - taking what the host sends. */
#define _GNU_SOURCE
#include <errno.h>

#include "receive.h"

enum { FLAGS = MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC };

/*
 * receive believes in an end that it is told of twice: the kernel looks for a
 * message and then for the end, and a host that sends and closes may have done
 * both in between.
 */
ssize_t receive(int socket, struct msghdr *m)
{
	const struct msghdr anew = *m;
	ssize_t size = recvmsg(socket, m, FLAGS);

	if (size != 0 || m->msg_controllen > 0)
		return size;
	*m = anew;
	size = recvmsg(socket, m, FLAGS);
	if (size < 0 && errno == EAGAIN) { /* it was an empty message */
		m->msg_controllen = 0;
		return 0;
	}
	return size;
}

ssize_t receive_bytes(int socket, void *to, size_t size)
{
	struct iovec body = { to, size };
	struct msghdr m = { .msg_iov = &body, .msg_iovlen = 1 };

	return receive(socket, &m);
}

/*
 * receive_passes: ECONNRESET is said once, by the end of a host that had not read
 * everything, and before what that host had sent until then.
 */
bool receive_passes(int error)
{
	return error == EAGAIN || error == EINTR || error == ENOMEM ||
	       error == ENOBUFS || error == ECONNRESET;
}
