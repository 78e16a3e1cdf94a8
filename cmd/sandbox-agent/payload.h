/* payload.h - a command as the host described it, checked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "protocol.h"

struct payload {
	struct payload_header head;
	gid_t groups[MAX_GROUPS];
	struct payload_rlimit rlimits[MAX_RLIMITS];
	char *directory;
	char **argv, **envp;	/* each ends in NULL */
};

/*
 * payload_parse checks the size bytes at bytes and fills in p, whose strings
 * point into them. The two vectors are laid into pointers, which has room for
 * so many. False means the payload is malformed; p is then meaningless.
 */
bool payload_parse(struct payload *p, char *bytes, size_t size,
		   char **pointers, size_t room);

/* payload_room is how many pointers a payload of that size can need. */
size_t payload_room(size_t size);
