/* receive.h - taking what the host sends. */
#ifndef SANDBOX_AGENT_RECEIVE_H
#define SANDBOX_AGENT_RECEIVE_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

/*
 * receive is recvmsg(2) of one message, without waiting; of one that is too long
 * it returns the whole length. 0 is the host's end. So is an empty message, with
 * which descriptors may have come.
 */
ssize_t receive(int socket, struct msghdr *m);

/* receive_bytes is receive where no descriptors are taken. */
ssize_t receive_bytes(int socket, void *to, size_t size);

/* receive_passes tells whether an error of receive leaves the socket in order. */
bool receive_passes(int error);

#endif
