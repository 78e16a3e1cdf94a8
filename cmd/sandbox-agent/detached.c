/*
 * detached.c - execs that outlive the connection that asked for them.
 *
 * A table of fixed size. The exit of one that has ended stays until a host has
 * it forgotten, or until its place is needed: a host that never comes back
 * costs the next one nothing but old exits.
 */
#include <string.h>
#include <time.h>

#include "detached.h"

static struct detached table[MAX_DETACHED];

/* Places above this were never taken, and are not looked at. */
static size_t used;

struct detached *detached_find(const uint8_t id[ID_SIZE])
{
	for (size_t i = 0; i < used; i++)
		if (table[i].kept && memcmp(table[i].id, id, ID_SIZE) == 0)
			return &table[i];
	return NULL;
}

struct detached *detached_of(pid_t pid)
{
	for (size_t i = 0; i < used; i++)
		if (table[i].kept && (table[i].pid == pid || table[i].drainer == pid))
			return &table[i];
	return NULL;
}

struct detached *detached_place(void)
{
	struct detached *oldest = NULL;

	for (size_t i = 0; i < used; i++) {
		if (!table[i].kept)
			return &table[i];
		if (table[i].ended > 0 && (!oldest || table[i].ended < oldest->ended))
			oldest = &table[i];
	}
	return used < MAX_DETACHED ? &table[used++] : oldest;
}

/* now is the time as EXITED tells it. */
static uint32_t now(void)
{
	struct timespec t;

	if (clock_gettime(CLOCK_BOOTTIME, &t))
		return 0;
	return (uint32_t)((uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000);
}

void detached_end(struct detached *d, const struct event *exit)
{
	static uint64_t ends;

	d->pid = 0;
	d->ended = ++ends;
	d->exit = *exit;
	d->exit.stage = now();
}

size_t detached_list(struct list *l)
{
	size_t n = 0;

	for (size_t i = 0; i < used; i++)
		if (table[i].kept)
			memcpy(l->ids[n++], table[i].id, ID_SIZE);
	l->event = (struct event){ .kind = EVENT_LIST, .value = (int32_t)n };
	return sizeof(l->event) + n * ID_SIZE;
}
