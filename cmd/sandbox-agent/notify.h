/* notify.h - tells the host about refused calls. */
#pragma once

/*
 * notify_open watches the listener of the sandbox's filter, if the filter has one. The
 * calls that the filter hands to the listener wait for an answer: it is always EPERM.
 */
void notify_open(void);

/* notify_serve refuses one call, and notes it at the exec that has made it. */
void notify_serve(void);
