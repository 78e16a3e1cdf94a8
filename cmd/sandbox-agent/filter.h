/* filter.h - the seccomp filters: the sandbox's own, and the commands'. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/*
 * filter_load loads the filter in the file fd, whose form is in protocol.h.
 * False with an errno means that none was loaded.
 */
bool filter_load(int fd);

/* filter_listener is the descriptor of that filter's listener; -1 if it has none. */
int filter_listener(void);

/* filter_is_valid checks the size bytes of such a file, as far as seccomp(2) will not. */
bool filter_is_valid(const void *bytes, size_t size);

/*
 * filter_narrow loads the commands' filter: this process and all it starts find no
 * clone3, and load no filters of their own. Where the agent needs no clone3 itself,
 * filter_settle has loaded it once for all.
 */
bool filter_narrow(void);
bool filter_settle(void);

/*
 * filter_withhold loads one more filter in the agent, for good: this process and all it
 * starts get EPERM for the set-group-ID bit in the mode of a file. The sandbox's filter may
 * allow this bit. filter_await_withhold says that it does; it comes before filter_settle,
 * which would leave the agent no way to load another filter.
 */
bool filter_withhold(void);
void filter_await_withhold(void);

/* filter_allow_filters lets commands load filters. It comes before the two above. */
void filter_allow_filters(void);
