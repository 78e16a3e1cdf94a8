/* drain.h - where the output of a detached exec goes. */
#pragma once

#include <sys/types.h>

#include "request.h"

/*
 * drain makes two pipes, puts the ends to write to at 1 and 2 of the request's
 * stdio, and forks a process that copies the other ends to the request's
 * output, see struct output_header. It returns its pid, or -1.
 */
pid_t drain(struct exec_request *request);
