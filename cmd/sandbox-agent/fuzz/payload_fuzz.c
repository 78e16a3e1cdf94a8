/*
 * payload_fuzz - feeds payloads to the parser, under the sanitizers.
 *
 * Reads records from stdin, each a uint32_t length and its bytes, and answers
 * each with one byte on stdout: 1 where the parser took it, 0 where not. It
 * stops with a message at the first fault. Memory is allocated to the byte, so
 * that one too many is found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "payload.h"

static void insist(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "payload_fuzz: accepted a payload whose %s\n", what);
	abort();
}

/* touch reads all that an accepted payload promises. */
static size_t touch(const struct payload *p, const char *bytes, size_t size)
{
	size_t sum = strlen(p->directory);

	insist(p->uid < AGENT_ID && p->gid < AGENT_ID, "ids are the agent's");
	insist(p->ngroups <= MAX_GROUPS, "groups are too many");
	for (size_t i = 0; i < p->ngroups; i++)
		insist(p->groups[i] < AGENT_ID, "group is the agent's");
	for (size_t i = 0; i < p->nrlimits; i++)
		insist(p->rlimits[i].resource < MAX_RLIMITS, "limit is unknown");
	insist(p->oom_score_adj <= 1000, "oom_score_adj is too high");
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

static bool parse(const char *input, size_t size, size_t room)
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

int main(void)
{
	uint32_t size;

	while (fread(&size, sizeof(size), 1, stdin) == 1) {
		char *input = malloc(size ? size : 1);
		bool taken;

		if (!input || fread(input, 1, size, stdin) != size)
			return 2;
		taken = parse(input, size, payload_room(size));
		for (size_t room = 0; room < 8; room++)
			if (parse(input, size, room))
				insist(taken, "room decides");
		putchar(taken);
		fflush(stdout);
		free(input);
	}
	return 0;
}
