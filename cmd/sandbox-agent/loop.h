/* loop.h - the waiting of the agent. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

/* Marks in epoll's data: indices of the execs, of the connections, and three. */
enum {
	FROM_EXECS = 0,
	FROM_CONNECTIONS = MAX_EXECS,
	FROM_LISTENER = FROM_CONNECTIONS + MAX_CONNECTIONS,
	FROM_CHILDREN,
	FROM_NOTIFY,
};

/* loop_watch has loop_wait return mark when there is something to read. */
bool loop_watch(int fd, size_t mark);

/*
 * loop_wait returns one mark. It returns -1 after a signal, or if poll is true and
 * there is nothing to read. It returns only one mark, since the caller may close the
 * descriptor of the next one.
 */
int64_t loop_wait(bool poll);

/* loop_forget ends the watch. */
void loop_forget(int fd);

/* loop_close ends the watch and closes *fd, which is -1 then; it may be before. */
void loop_close(int *fd);
