/* payload.h - the checked description of a command. */
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
 * point into them. The vectors argv and envp are stored in pointers, which has
 * room entries. False means that the payload is malformed; the caller must not
 * use p then.
 */
bool payload_parse(struct payload *p, char *bytes, size_t size,
		   char **pointers, size_t room);

/* payload_room returns the most pointers that a payload of this size can need. */
size_t payload_room(size_t size);
