/*
 * payload.c - reads the description of a command.
 *
 * This code runs in the forked child, never in the agent. So a malformed payload
 * can only end the child that was forked for it. The code allocates nothing. All
 * reads go through take(), the only function that compares a length with the
 * number of bytes that are left.
 */
#include <string.h>

#include "payload.h"

struct cursor {
	char *at;
	size_t left;
};

/* take returns the next n bytes, or NULL if fewer are left. */
static char *take(struct cursor *c, size_t n)
{
	char *bytes = c->at;

	if (n > c->left)
		return NULL;
	c->at += n;
	c->left -= n;
	return bytes;
}

/* copy takes n bytes into an object. The bytes in the payload may be unaligned. */
static bool copy(struct cursor *c, void *to, size_t n)
{
	const char *from = take(c, n);

	if (!from)
		return false;
	memcpy(to, from, n);
	return true;
}

/*
 * string returns the next string, or NULL. A string has its length in front, which
 * counts the NUL at its end, and no other NUL.
 */
static char *string(struct cursor *c)
{
	uint32_t length;
	char *bytes;

	if (!copy(c, &length, sizeof(length)) || length == 0)
		return NULL;
	bytes = take(c, length);
	if (!bytes || memchr(bytes, 0, length) != bytes + length - 1)
		return NULL;
	return bytes;
}

static bool strings(struct cursor *c, char **vector, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		vector[i] = string(c);
		if (!vector[i])
			return false;
	}
	vector[n] = NULL;
	return true;
}

static bool header_is_valid(const struct payload_header *h)
{
	return h->uid < AGENT_ID && h->gid < AGENT_ID &&
	       (h->flags & ~(uint32_t)PAYLOAD_ALL) == 0 &&
	       h->flags != PAYLOAD_PLAIN_NEWLINES &&
	       h->rows <= UINT16_MAX && h->columns <= UINT16_MAX &&
	       h->oom_score_adj <= 1000 &&
	       h->groups <= MAX_GROUPS && h->rlimits <= MAX_RLIMITS &&
	       h->argc >= 1;
}

static bool take_groups(struct payload *p, struct cursor *c)
{
	for (size_t i = 0; i < p->head.groups; i++) {
		uint32_t id;

		if (!copy(c, &id, sizeof(id)) || id >= AGENT_ID)
			return false;
		p->groups[i] = id;
	}
	return true;
}

static bool take_rlimits(struct payload *p, struct cursor *c)
{
	for (size_t i = 0; i < p->head.rlimits; i++)
		if (!copy(c, &p->rlimits[i], sizeof(p->rlimits[i])) ||
		    p->rlimits[i].resource >= MAX_RLIMITS)
			return false;
	return true;
}

size_t payload_room(size_t size)
{
	/* The shortest string takes five bytes. Each of the two vectors ends in a NULL. */
	return size / (sizeof(uint32_t) + 1) + 2;
}

bool payload_parse(struct payload *p, char *bytes, size_t size,
		   char **pointers, size_t room)
{
	struct cursor c = { bytes, size };
	const struct payload_header *h = &p->head;

	if (!copy(&c, &p->head, sizeof(p->head)) || !header_is_valid(h) ||
	    !take_groups(p, &c) || !take_rlimits(p, &c))
		return false;

	p->directory = string(&c);
	if (!p->directory || p->directory[0] != '/')
		return false;

	/* A sum of two 32-bit numbers cannot overflow 64 bits. */
	if ((uint64_t)h->argc + h->envc + 2 > room)
		return false;
	p->argv = pointers;
	p->envp = pointers + h->argc + 1;
	return strings(&c, p->argv, h->argc) &&
	       strings(&c, p->envp, h->envc) && c.left == 0;
}
