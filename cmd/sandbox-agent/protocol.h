/*
 * protocol.h - the messages between the host and the agent.
 *
 * Every socket is AF_UNIX SOCK_SEQPACKET, so a message is whole or absent and
 * a wrong size is a wrong message. Numbers are in the machine's own order:
 * both ends run on it. The sizes are the protocol; a change to either struct,
 * to the payload or to the meaning of a field is a new PROTOCOL_VERSION.
 *
 *   control    host -> agent   requests EXEC, ATTACH, LIST, WITHHOLD, each with the
 *                              socket that is answered on; TIE, FORGET, with none
 *              agent -> host   event HELLO or FATAL, once
 *   exec       agent -> host   event EXITED; of a detached exec also DRAINED,
 *                              before or after that; for ATTACH first of all
 *                              ATTACHED, or FAILED alone
 *              host -> agent   request SIGNAL
 *   set-up     host -> child   the payload, in as many messages as it takes
 *              agent -> host   event FAILED, if there is no child
 *              child -> host   event TERMINAL with the pty's master, at most
 *                              once; event FAILED, at most once; then the end
 *                              of the stream, which execve(2) or death makes
 *   list       agent -> host   a struct list, once
 *   withhold   agent -> host   event WITHHELD or FAILED, once
 *
 * An agent has one control socket from its start, and one more for each host
 * that connects to its listener. HELLO has this form and kind in every version,
 * so that a host can always name a version that it does not know.
 *
 * A request that is not of this form is answered with FAILED on the first of
 * its descriptors. The host can send the payload's first message before the
 * request. The child waits for the other messages. All that keeps a command
 * from starting is said on the set-up socket, whose end is all that a host
 * waits for.
 */
#pragma once

#include <stdint.h>

enum {
	PROTOCOL_VERSION = 6,
	AGENT_ID = 65535,		/* uid and gid that no exec may have */
	MAX_EXECS = 1024,		/* sockets of execs, attached to or of the host's own */
	MAX_DETACHED = 256,		/* that run, or whose exit is kept */
	MAX_CONNECTIONS = 64,
	MAX_TASKS = 12,			/* more than v1 has hierarchies for an exec */
	ID_SIZE = 16,
	MAX_PAYLOAD = 8 << 20,		/* execve(2) takes 6 MiB at most */
	MAX_GROUPS = 256,
	MAX_RLIMITS = 16,
	STDIO_ALL = 7,			/* bits 0-2 of request.stdio */
	WITH_CGROUP = 1,		/* bits of request.with */
	WITH_OUTPUT = 2,
	WITH_NETWORK = 4,
	WITH_ROOT = 8,			/* since version 3 */
	WITH_PROGRAM = 16,		/* as that */
	WITH_ALL = 31,
	PAYLOAD_TTY = 1,		/* bits of payload_header.flags */
	PAYLOAD_PLAIN_NEWLINES = 2,	/* since version 4, beside PAYLOAD_TTY */
	PAYLOAD_ALL = 3,
};

enum request_kind {
	REQUEST_EXEC = 1,
	REQUEST_SIGNAL = 2,
	REQUEST_TIE = 3,	/* the agent ends with this connection */
	REQUEST_ATTACH = 4,	/* hear of a detached exec, signal it */
	REQUEST_LIST = 5,	/* the detached execs that are kept */
	REQUEST_FORGET = 6,	/* keep no more of a detached exec */
	REQUEST_WITHHOLD = 7,	/* no exec that starts from now on sets the set-group-ID
				   bit; since version 5 */
};

/*
 * The descriptors of EXEC, in this order: the exec's socket, the set-up
 * socket; those of stdin, stdout, stderr that stdio names; so many files
 * `tasks` of cgroup v1; then, as `with` says, the directory of a group of v2 to
 * fork into; the two files that keep the output, which make the exec a detached
 * one without stdout and stderr of its own; a network namespace; the directory
 * that is the command's root; the program to execute in place of the one that
 * its first argument names.
 */
struct request {
	uint32_t kind;
	uint32_t stdio;		/* EXEC: which of 0-2 are passed */
	uint32_t with;		/* EXEC: the other passed parts */
	uint32_t tasks;		/* EXEC: how many, not beside WITH_CGROUP */
	uint32_t payload;	/* EXEC: its size in bytes */
	uint32_t signal;	/* SIGNAL: its number */
	uint32_t group;		/* SIGNAL: 1 for the process group, 0 for the process */
	uint32_t reserved;	/* 0 */
	uint64_t limit;		/* EXEC, detached: bytes kept of each stream, as struct
				   output_header has it since version 6, before only the
				   first ones, as a plain file */
	uint8_t id[ID_SIZE];	/* EXEC, detached; ATTACH; FORGET */
};

enum event_kind {
	EVENT_HELLO = 1,	/* value: PROTOCOL_VERSION */
	EVENT_FATAL = 2,	/* stage, value: errno; the agent exits */
	EVENT_FAILED = 3,	/* stage, value: errno */
	EVENT_TERMINAL = 4,
	EVENT_EXITED = 5,	/* value: wait status, and the usage; of a detached
				   exec stage: when, in milliseconds of
				   CLOCK_BOOTTIME, the low 32 bits, 0: not told */
	EVENT_ATTACHED = 6,
	EVENT_DRAINED = 7,	/* nobody holds the output's pipes any more */
	EVENT_LIST = 8,		/* value: the number of ids */
	EVENT_WITHHELD = 9,
};

/* Calls that the sandbox's filter has refused to the processes in an exec's session. */
enum {
	REFUSED_TRACE = 1,	/* ptrace, process_vm_readv, process_vm_writev, kcmp, pidfd_getfd */
	REFUSED_PERF = 2,	/* perf_event_open */
	REFUSED_BPF = 4,
	REFUSED_NAMESPACE = 8,	/* clone with a new namespace, unshare, setns */
	REFUSED_MOUNT = 16,	/* mount, umount2 */
};

struct event {
	uint32_t kind;
	uint32_t stage;
	int32_t value;
	uint32_t refused;	/* EXITED, since version 5: REFUSED_ bits; else 0 */
	uint64_t user_us;
	uint64_t system_us;
	uint64_t max_rss_kib;
};

/* The answer to LIST, sent as far as its ids go. */
struct list {
	struct event event;
	uint8_t ids[MAX_DETACHED][ID_SIZE];
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

/*
 * The file of a detached exec's stream, since version 6: this header; the times;
 * from OUTPUT_START on the kept bytes. Those are the first `head` bytes of the stream
 * in their order, and after them a ring with the last `tail` bytes: byte n of the
 * stream is at head + (n - head) % tail. A file of no bytes has had no output.
 *
 * The header is written before and after each change of the ring. Until then the
 * bytes before begun - tail may be overwritten. A reader that finds a wrong check has
 * read while the header was written.
 */
struct output_header {
	uint64_t total;		/* bytes of the stream so far */
	uint64_t begun;		/* with those that are being written */
	uint64_t head;
	uint64_t tail;		/* 0: nothing after the head is kept */
	uint64_t times;		/* how many there are */
	uint64_t thinned;	/* how often older times were dropped */
	uint64_t check;		/* all of the above, and OUTPUT_CHECK, in one xor */
	uint64_t reserved;	/* 0 */
};

/* The first byte of a second. The seconds are those of CLOCK_BOOTTIME. */
struct output_time {
	uint32_t second;
	uint32_t merged;	/* 1: times between this one and the next were dropped */
	uint64_t offset;
};

#define OUTPUT_CHECK UINT64_C(0x5bf03635dd9b1e27)

enum {
	OUTPUT_TIMES = 2044,
	OUTPUT_START = 1 << 15,	/* the header and the times fill this */
};

/*
 * The filter file, which the agent inherits as descriptor 8: this header, then so
 * many of seccomp(2)'s struct sock_filter. Nothing follows.
 */
struct filter_header {
	uint32_t flags;		/* of SECCOMP_SET_MODE_FILTER */
	uint32_t count;
};
