/*
 * protocol.h - what the host and the agent say to each other.
 *
 * Every socket is AF_UNIX SOCK_SEQPACKET, so a message is whole or absent and
 * a wrong size is a wrong message. Numbers are in the machine's own order:
 * both ends run on it. The sizes are the protocol; a change to either struct,
 * to the payload or to the meaning of a field is a new PROTOCOL_VERSION.
 *
 *   control    host -> agent   request EXEC with descriptors: the exec's
 *                              socket, the set-up socket, then those of stdin,
 *                              stdout, stderr that the mask names
 *              agent -> host   event HELLO or FATAL, once
 *   exec       agent -> host   event FAILED if there is no child, else EXITED
 *              host -> agent   request SIGNAL
 *   set-up     host -> child   the payload, in as many messages as it takes
 *              child -> host   event TERMINAL with the pty's master, at most
 *                              once; event FAILED, at most once; then the end
 *                              of the stream, which execve(2) or death makes
 *
 * The host sends the payload's first message before the request, the others
 * after it. The agent says FAILED before it closes the set-up socket. So the end of that
 * stream is all that a host waits for, and one look at the exec's socket then
 * tells a refusal from a start.
 */
#ifndef SANDBOX_AGENT_PROTOCOL_H
#define SANDBOX_AGENT_PROTOCOL_H

#include <stdint.h>

enum {
	PROTOCOL_VERSION = 1,
	AGENT_ID = 65535,		/* uid and gid that no exec may have */
	MAX_EXECS = 1024,
	MAX_PAYLOAD = 8 << 20,		/* above what execve(2) takes at most, 6 MiB */
	MAX_GROUPS = 256,
	MAX_RLIMITS = 16,
	STDIO_ALL = 7,			/* bits 0-2 of request.stdio */
	PAYLOAD_TTY = 1,		/* the one bit of payload_header.flags */
};

enum request_kind { REQUEST_EXEC = 1, REQUEST_SIGNAL = 2 };

struct request {
	uint32_t kind;
	uint32_t stdio;		/* EXEC: which of 0-2 are passed */
	uint32_t payload;	/* EXEC: its size in bytes */
	uint32_t signal;	/* SIGNAL: its number */
	uint32_t group;		/* SIGNAL: 1 for the process group, 0 for the process */
};

enum event_kind {
	EVENT_HELLO = 1,	/* value: PROTOCOL_VERSION */
	EVENT_FATAL = 2,	/* stage, value: errno; the agent exits */
	EVENT_FAILED = 3,	/* stage, value: errno */
	EVENT_TERMINAL = 4,
	EVENT_EXITED = 5,	/* value: wait status, and the usage */
};

struct event {
	uint32_t kind;
	uint32_t stage;
	int32_t value;
	uint32_t reserved;	/* 0 */
	uint64_t user_us;
	uint64_t system_us;
	uint64_t max_rss_kib;
};

/*
 * The payload: this header; groups as uint32_t; rlimits; then strings, each a
 * uint32_t length that counts its final NUL, and its bytes: the directory,
 * argc arguments, envc settings. Nothing follows.
 */
struct payload_header {
	uint32_t uid;
	uint32_t gid;
	uint32_t flags;
	uint32_t rows;
	uint32_t columns;
	uint32_t oom_score_adj;	/* 0 leaves it as inherited, else 1 to 1000 */
	uint32_t groups;
	uint32_t rlimits;
	uint32_t argc;
	uint32_t envc;
};

struct payload_rlimit {
	uint64_t resource;
	uint64_t soft;
	uint64_t hard;
};

#endif
