/* child.h - from fork(2) to execve(2). */
#pragma once

#include <stdnoreturn.h>

#include "request.h"

/*
 * child_run makes the process that was just forked into the command. It
 * returns to nobody: where it cannot go on it says so on the set-up socket and
 * exits.
 */
noreturn void child_run(const struct exec_request *request);
