/*
 * request.c - reads the requests of a host.
 *
 * No function here makes a system call, so that a fuzzer can call them with any
 * input: see fuzz/parse_fuzz.c. Only one function compares the number of
 * descriptors with the message, before any descriptor gets a name.
 */
#include <string.h>

#include "request.h"

static size_t bits(uint32_t set)
{
	return (size_t)__builtin_popcount(set);
}

static bool exec_is_valid(const struct request *r, size_t n)
{
	const uint32_t out = 6; /* stdout and stderr, which a detached exec has not */

	return (r->stdio & ~(uint32_t)STDIO_ALL) == 0 &&
	       (r->with & ~(uint32_t)WITH_ALL) == 0 &&
	       r->tasks <= MAX_TASKS &&
	       !(r->tasks > 0 && (r->with & WITH_CGROUP)) &&
	       !((r->with & WITH_OUTPUT) && (r->stdio & out)) &&
	       n == 2 + bits(r->stdio) + r->tasks + bits(r->with) +
		    ((r->with & WITH_OUTPUT) ? 1 : 0);
}

uint32_t request_kind(const struct request *r, size_t size, size_t n, bool control)
{
	bool valid = false;

	if (size != sizeof(*r) || r->reserved != 0)
		return 0;
	switch (r->kind) {
	case REQUEST_EXEC:
		valid = control && exec_is_valid(r, n);
		break;
	case REQUEST_ATTACH:
	case REQUEST_LIST:
	case REQUEST_WITHHOLD:
		valid = control && n == 1;
		break;
	case REQUEST_TIE:
	case REQUEST_FORGET:
		valid = control && n == 0;
		break;
	case REQUEST_SIGNAL:
		valid = !control && r->group <= 1;
		break;
	}
	return valid ? r->kind : 0;
}

void request_exec(struct exec_request *x, const struct request *r, const int *fds)
{
	*x = (struct exec_request){
		.exec = *fds++, .setup = *fds++,
		.stdio = { -1, -1, -1 }, .ntasks = r->tasks,
		.cgroup = -1, .output = { -1, -1 }, .network = -1, .root = -1,
		.program = -1,
		.payload = r->payload, .limit = r->limit,
	};
	for (int i = 0; i < 3; i++)
		if (r->stdio & (1U << i))
			x->stdio[i] = *fds++;
	for (size_t i = 0; i < x->ntasks; i++)
		x->tasks[i] = *fds++;
	if (r->with & WITH_CGROUP)
		x->cgroup = *fds++;
	if (r->with & WITH_OUTPUT) {
		x->detached = true;
		x->output[0] = *fds++;
		x->output[1] = *fds++;
	}
	if (r->with & WITH_NETWORK)
		x->network = *fds++;
	if (r->with & WITH_ROOT)
		x->root = *fds++;
	if (r->with & WITH_PROGRAM)
		x->program = *fds++;
	memcpy(x->id, r->id, sizeof(x->id));
}
