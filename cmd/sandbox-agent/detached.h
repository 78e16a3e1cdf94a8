/* detached.h - execs that outlive the connection that asked for them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "protocol.h"

/* One that is kept: while it runs, and with its exit until it is forgotten. */
struct detached {
	bool kept;
	pid_t pid;		/* 0 once it was reaped */
	pid_t drainer;		/* 0 once it was reaped */
	uint32_t refused;	/* REFUSED_ bits, of calls of the command */
	uint64_t ended;		/* its place in the order of ends; 0 while it runs */
	struct event exit;	/* once it has ended */
	uint8_t id[ID_SIZE];
};

/* detached_find returns the one of that id, or NULL. */
struct detached *detached_find(const uint8_t id[ID_SIZE]);

/* detached_of returns the one whose command or whose drainer pid is, or NULL. */
struct detached *detached_of(pid_t pid);

/*
 * detached_place returns a place for another: a free one, else that of the one
 * which ended first, else NULL. The caller forgets whom it finds there.
 */
struct detached *detached_place(void);

/* detached_end keeps the exit, and when that was. */
void detached_end(struct detached *d, const struct event *exit);

/* detached_list fills in l and returns how many of its bytes to send. */
size_t detached_list(struct list *l);
