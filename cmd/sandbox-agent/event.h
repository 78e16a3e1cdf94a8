/* event.h - messages to the host. */
#pragma once

#include <stdbool.h>

#include "protocol.h"
#include "stages.h"

/*
 * send_event sends e, and the descriptor pass unless that is -1. It never
 * waits: a host that does not read loses its message, not the agent.
 */
bool send_event(int socket, const struct event *e, int pass);

/* event_passes tells whether an error of recv(2) leaves the socket in order. */
bool event_passes(int error);

/* send_failure says which stage failed, and with which errno. */
void send_failure(int socket, enum event_kind kind, enum stage stage, int error);
