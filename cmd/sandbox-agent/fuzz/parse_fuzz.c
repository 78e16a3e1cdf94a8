/*
 * parse_fuzz - feeds the messages of a host to their parsers, under the sanitizers.
 *
 * Reads records from stdin, each a uint32_t length, a letter for the parser and
 * the bytes: p for a payload, r for a request with one byte for the number of
 * its descriptors and one for the sort of socket it came on, f for a filter
 * file. It answers each with one byte on stdout: 1 where the parser took it, 0
 * where not. It stops with a message at the first fault. Memory is allocated to
 * the byte, so that one too many is found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "filter.h"
#include "payload.h"
#include "request.h"

static void insist(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "parse_fuzz: accepted something whose %s\n", what);
	abort();
}

/* touch reads all that an accepted payload promises. */
static size_t touch(const struct payload *p, const char *bytes, size_t size)
{
	size_t sum = strlen(p->directory);

	insist(p->head.uid < AGENT_ID && p->head.gid < AGENT_ID, "ids are the agent's");
	insist(p->head.groups <= MAX_GROUPS, "groups are too many");
	for (size_t i = 0; i < p->head.groups; i++)
		insist(p->groups[i] < AGENT_ID, "group is the agent's");
	for (size_t i = 0; i < p->head.rlimits; i++)
		insist(p->rlimits[i].resource < MAX_RLIMITS, "limit is unknown");
	insist(p->head.oom_score_adj <= 1000, "oom_score_adj is too high");
	insist(p->directory[0] == '/', "directory is relative");
	insist(p->argv[0] != NULL, "program is missing");
	for (char *const *list = p->argv; list; list = list == p->argv ? p->envp : NULL)
		for (char *const *s = list; *s; s++) {
			insist(*s >= bytes && *s < bytes + size, "string is elsewhere");
			sum += strlen(*s);
		}
	insist(sum < size, "strings are longer than itself");
	return sum;
}

static bool parse_payload_in(const char *input, size_t size, size_t room)
{
	struct payload *p = malloc(sizeof(*p));
	char *bytes = malloc(size ? size : 1);
	char **pointers = malloc(room ? room * sizeof(char *) : 1);
	bool taken;

	if (!p || !bytes || !pointers)
		abort();
	memset(p, 0xa5, sizeof(*p));
	memcpy(bytes, input, size);
	taken = payload_parse(p, bytes, size, pointers, room);
	if (taken)
		touch(p, bytes, size);
	free(pointers);
	free(bytes);
	free(p);
	return taken;
}

static bool parse_payload(const char *input, size_t size)
{
	bool taken = parse_payload_in(input, size, payload_room(size));

	for (size_t room = 0; room < 8; room++)
		if (parse_payload_in(input, size, room))
			insist(taken, "room decides");
	return taken;
}

/* find takes a descriptor out of those that were passed. */
static size_t find(int fd, bool *passed, size_t n)
{
	if (fd < 0)
		return 0;
	insist((size_t)fd < n && passed[fd], "descriptors are not those passed");
	passed[fd] = false;
	return 1;
}

/* parse_request: each descriptor has one name, and each name one descriptor. */
static bool parse_request(const char *input, size_t size)
{
	struct request r;
	struct exec_request x;
	bool passed[256], control;
	size_t n, named = 0;
	uint32_t kind;
	int *fds;

	if (size < 2)
		return false;
	n = (unsigned char)input[0];
	control = input[1] & 1;
	size -= 2;
	memset(&r, 0xa5, sizeof(r));
	memcpy(&r, input + 2, size < sizeof(r) ? size : sizeof(r));
	kind = request_kind(&r, size, n, control);
	if (kind == 0)
		return false;
	insist(size == sizeof(r) && kind == r.kind, "size or kind is another");
	insist((kind == REQUEST_SIGNAL) == !control, "socket is another");
	if (kind != REQUEST_EXEC)
		return true;
	insist(n <= MAX_FILES, "descriptors are too many");
	fds = malloc(n * sizeof(int));
	if (!fds)
		abort();
	for (size_t i = 0; i < n; i++) {
		fds[i] = (int)i;
		passed[i] = true;
	}
	memset(&x, 0xa5, sizeof(x));
	request_exec(&x, &r, fds);
	free(fds);
	insist(x.exec >= 0 && x.setup >= 0 && x.ntasks <= MAX_TASKS, "sockets are missing");
	insist(x.detached == (x.output[0] >= 0) && x.detached == (x.output[1] >= 0), "output is half");
	insist(!x.detached || (x.stdio[1] < 0 && x.stdio[2] < 0), "output is double");
	insist(x.cgroup < 0 || x.ntasks == 0, "cgroups are of both sorts");
	named += find(x.exec, passed, n) + find(x.setup, passed, n) +
		 find(x.cgroup, passed, n) + find(x.network, passed, n) +
		 find(x.output[0], passed, n) + find(x.output[1], passed, n) +
		 find(x.root, passed, n) + find(x.program, passed, n);
	for (int i = 0; i < 3; i++)
		named += find(x.stdio[i], passed, n);
	for (size_t i = 0; i < x.ntasks; i++)
		named += find(x.tasks[i], passed, n);
	insist(named == n, "descriptors are not all named");
	return true;
}

static bool parse_filter(const char *input, size_t size)
{
	char *bytes = malloc(size ? size : 1);
	struct filter_header h;
	bool taken;

	if (!bytes)
		abort();
	memcpy(bytes, input, size);
	taken = filter_is_valid(bytes, size);
	if (taken) {
		memcpy(&h, bytes, sizeof(h));
		insist(h.count > 0 && size == sizeof(h) + 8 * (size_t)h.count, "count is wrong");
		insist((h.flags & ~15U) == 0, "flags are unknown");
	}
	free(bytes);
	return taken;
}

static bool parse(char parser, const char *input, size_t size)
{
	switch (parser) {
	case 'p':
		return parse_payload(input, size);
	case 'r':
		return parse_request(input, size);
	case 'f':
		return parse_filter(input, size);
	default:
		abort();
	}
}

int main(void)
{
	uint32_t size;
	char parser;

	while (fread(&size, sizeof(size), 1, stdin) == 1 && fread(&parser, 1, 1, stdin) == 1) {
		char *input = malloc(size ? size : 1);

		if (!input || fread(input, 1, size, stdin) != size)
			return 2;
		putchar(parse(parser, input, size));
		fflush(stdout);
		free(input);
	}
	return 0;
}
