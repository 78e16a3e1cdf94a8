/* start.h - the steps of the agent before it serves. */
#pragma once

#include <stdbool.h>
#include <stdnoreturn.h>

#include "stages.h"

/*
 * Descriptors of the agent. 0-2 are /dev/null, CHILDREN and LOOP are always
 * open; FIRST is the first connection, until its end; LISTENER may be missing.
 * STORE may be, too: it keeps the file system of what the sandbox writes, for
 * the host to find it, and the agent does nothing with it. SYNC is the top of
 * that file system once more, open for reading. The host takes SYNC with
 * pidfd_getfd(2) and asks it for errors with syncfs(2): only a descriptor that
 * was open before an error reports the error for certain.
 */
enum { CHILDREN = 3, LOOP = 4, FIRST = 5, LISTENER = 6, STORE = 7, SYNC = 8 };

/*
 * start checks the surroundings, sheds what the agent does not need, opens its
 * descriptors and loads the sandbox's seccomp filter. It returns only if all of
 * that held: whether there is a listener.
 */
bool start(void);

/* die tells the host which stage failed and exits with its number. */
noreturn void die(enum stage stage, int error);
