/* loop.c - the waiting of the agent. */
#define _GNU_SOURCE
#include <sys/epoll.h>
#include <unistd.h>

#include "loop.h"
#include "start.h"

bool loop_watch(int fd, size_t mark)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u32 = (uint32_t)mark };

	return epoll_ctl(LOOP, EPOLL_CTL_ADD, fd, &e) == 0;
}

int64_t loop_wait(bool poll)
{
	struct epoll_event e;

	return epoll_wait(LOOP, &e, 1, poll ? 0 : -1) == 1 ? (int64_t)e.data.u32 : -1;
}

void loop_forget(int fd)
{
	epoll_ctl(LOOP, EPOLL_CTL_DEL, fd, NULL);
}

/*
 * The watch ends before the close: a child that has just been forked may hold
 * the socket a moment longer, and would keep it in the epoll set.
 */
void loop_close(int *fd)
{
	if (*fd < 0)
		return;
	loop_forget(*fd);
	close(*fd);
	*fd = -1;
}
