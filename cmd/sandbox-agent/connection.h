/* connection.h - the hosts that are connected. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/*
 * connections_open begins with the first connection. A tied one is the agent's
 * life: the agent ends with it.
 */
void connections_open(int first, bool tied);

/* connections_accept takes one host that waits at the listener. */
void connections_accept(void);

/* connections_serve takes one message of a host. */
void connections_serve(size_t index);
