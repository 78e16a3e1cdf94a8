/*
 * stages.h - the steps at which something can be refused.
 *
 * One list for both ends: the agent sends the number, the host's package
 * internal/inside/agent gives it a name, and a test compares the two. Numbers are
 * never given a second meaning; the agent's own (1 to 19) are also its exit
 * statuses, for a host that lost the socket before it read the message.
 */
#pragma once

enum stage {
	/* The agent's start. */
	STAGE_CONTROL = 1,	/* descriptor 4 is not the control socket */
	STAGE_STDIO = 2,	/* descriptors 0-2 are not /dev/null */
	STAGE_PID = 3,		/* not process 1 of a pid namespace, or no subreaper in a shared one */
	STAGE_IDENTITY = 4,	/* not the agent's own id */
	STAGE_PRIVILEGES = 5,	/* capabilities or securebits cannot be shed */
	STAGE_DUMPABLE = 6,	/* still readable by others of its id */
	STAGE_SIGNALS = 7,	/* dispositions, mask, signalfd */
	STAGE_LOOP = 8,		/* epoll, or too few descriptors to serve */
	STAGE_LISTENER = 9,	/* descriptor 5 is not a listening socket */
	STAGE_SECCOMP = 10,	/* the filter file at descriptor 8, seccomp(2), or no filter is loaded */

	/* Refusals by the agent. */
	STAGE_REQUEST = 20,	/* the request is not of the protocol's form */
	STAGE_TABLE = 21,	/* as many execs are running as can */
	STAGE_FORK = 22,	/* fork(2) */
	STAGE_CONNECTIONS = 23,	/* as many hosts are connected as can */
	STAGE_CGROUP = 24,	/* clone3(2) into the cgroup; the child: its tasks files */
	STAGE_NETWORK = 25,	/* the child: its network namespace */
	STAGE_OUTPUT = 26,	/* the pipes of a detached exec, or the process that drains them */
	STAGE_ID = 27,		/* a detached exec of that id is there, or is not */

	/* Refusals by the forked child, on its set-up socket. */
	STAGE_DESCRIPTORS = 30,	/* moving stdio into place, closing the rest */
	STAGE_PAYLOAD = 31,	/* the payload is not of the protocol's form */
	STAGE_SESSION = 32,	/* setsid(2), signal mask */
	STAGE_OOM_SCORE = 33,	/* /proc/self/oom_score_adj */
	STAGE_RLIMITS = 34,	/* setrlimit(2) */
	STAGE_CREDENTIALS = 35,	/* ids, groups, capabilities, or their check */
	STAGE_TERMINAL = 36,	/* /dev/ptmx and the steps after it */
	STAGE_DIRECTORY = 37,	/* chdir(2) to the command's directory */
	STAGE_EXEC = 38,	/* execve(2), on every place of PATH */
	STAGE_NARROW = 39,	/* seccomp(2): the commands' filter; the agent: the one of WITHHOLD */
	STAGE_ROOT = 40,	/* fchdir(2) and chroot(2) to the command's root */
};
