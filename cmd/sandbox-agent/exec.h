/* exec.h - the execs that run, and the detached ones that are kept. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "request.h"

/* exec_make_room fits the table to the number of files the process may have open. */
void exec_make_room(void);

/*
 * exec_start answers a request that is in order. The exec's socket is then its
 * own; the other descriptors stay the caller's.
 */
void exec_start(struct exec_request *request);

/* exec_attach has the socket, then its own, told of a detached exec. */
void exec_attach(int socket, const uint8_t id[ID_SIZE]);

/* exec_list tells which detached execs there are. */
void exec_list(int socket);

/* exec_forget forgets the exit of a detached exec; the exec itself goes on. */
void exec_forget(const uint8_t id[ID_SIZE]);

/* exec_serve takes one message of the host's about an exec. */
void exec_serve(size_t index);

/* exec_refused is told of a refused call in the session of an exec. */
void exec_refused(pid_t session, uint32_t refusals);

/* exec_reaped is told of each child that has ended. */
void exec_reaped(pid_t pid, int status, const struct rusage *usage);
