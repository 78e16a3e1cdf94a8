/* start.h - the steps of the agent before it serves. */
#pragma once

#include <stdbool.h>
#include <stdnoreturn.h>

#include "stages.h"

/*
 * Descriptors of the agent while it serves; they are inherited one lower. 0-2 are
 * /dev/null. CHILDREN and LOOP are always open. FIRST is the first connection,
 * until its end. LISTENER, STORE and SYNC may be missing. STORE is the file system
 * with the sandbox's writes. The agent holds it for the host and does not use it.
 * SYNC is the top directory of that file system, open for reading. The host takes
 * SYNC with pidfd_getfd(2) and asks it for errors with syncfs(2): only a descriptor
 * that was open before an error is certain to report the error. A filter's listener
 * has the next free number: see filter_listener.
 */
enum { CHILDREN = 3, LOOP = 4, FIRST = 5, LISTENER = 6, STORE = 7, SYNC = 8 };

/*
 * start checks the process, drops all privileges that the agent does not need, opens
 * the descriptors and loads the sandbox's seccomp filter. If a step fails, start
 * does not return. It returns whether there is a listener. If shared is set, the
 * agent is a process of the host's pid namespace, and not process 1 of its own.
 */
bool start(bool shared);

/* leave exits with 0. No other process of the sandbox outlives that. */
noreturn void leave(void);

/* die tells the host which stage failed and exits with its number. */
noreturn void die(enum stage stage, int error);
