/* filter.h - the seccomp filters: the sandbox's own, and one of each exec. */
#ifndef SANDBOX_AGENT_FILTER_H
#define SANDBOX_AGENT_FILTER_H

#include <stdbool.h>
#include <stddef.h>

/*
 * filter_load loads the filter in the file fd, whose form is in protocol.h.
 * False with an errno means that none was loaded.
 */
bool filter_load(int fd);

/* filter_is_valid checks the size bytes of such a file, as far as seccomp(2) will not. */
bool filter_is_valid(const void *bytes, size_t size);

/*
 * filter_hide_clone3 lets this process and all it starts find no clone3. Where
 * the agent has none itself, filter_settle has done so for all.
 */
bool filter_hide_clone3(void);
bool filter_settle(void);

#endif
