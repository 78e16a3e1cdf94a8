/* request.h - a message of the host's with its descriptors, checked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

enum {
	/* That one request can carry: two sockets, stdio, tasks, the other five. */
	MAX_FILES = 2 + 3 + MAX_TASKS + 5,
};

/* A request of the host; a descriptor that was not passed is -1. */
struct exec_request {
	int exec, setup;
	int stdio[3];
	int tasks[MAX_TASKS];
	size_t ntasks;
	int cgroup;
	bool detached;
	int output[2];
	int network;
	int root;
	int program;
	uint32_t payload;
	uint64_t limit;
	uint8_t id[ID_SIZE];
};

/*
 * request_kind checks the size bytes that came as r, with n descriptors, on a
 * control socket or on the socket of an exec. It returns the kind, or 0 if the
 * request has not the protocol's form.
 */
uint32_t request_kind(const struct request *r, size_t size, size_t n, bool control);

/*
 * request_exec gives the n descriptors of a request EXEC, which request_kind
 * found to be so many, their names.
 */
void request_exec(struct exec_request *x, const struct request *r, const int *fds);
