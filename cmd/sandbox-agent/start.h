/* start.h - what the agent makes of itself before it serves. */
#ifndef SANDBOX_AGENT_START_H
#define SANDBOX_AGENT_START_H

#include <stdnoreturn.h>

#include "stages.h"

/* Descriptors of the agent; 0-2 are /dev/null, 3-5 are always open. */
enum { CONTROL = 3, CHILDREN = 4, LOOP = 5 };

/*
 * start checks the surroundings, sheds what the agent does not need and opens
 * its descriptors. It returns only if all of that held.
 */
void start(void);

/* die tells the host which stage failed and exits with its number. */
noreturn void die(enum stage stage, int error);

#endif
