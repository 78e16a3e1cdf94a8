/*
 * start.c - the steps of the agent before it serves.
 *
 * No step here is optional. The agent ends if a step fails, or if a check after
 * the step shows another result than agent.c relies on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "event.h"
#include "filter.h"
#include "start.h"

/*
 * The numbers at which the agent inherits its descriptors. The agent moves each of them
 * one up, to the number in start.h, so that 3 and 4 are free for CHILDREN and LOOP.
 */
enum {
	INHERITED_FIRST = 4, INHERITED_LISTENER, INHERITED_STORE, INHERITED_SYNC,
	INHERITED_FILTER, FILTER
};

#define BIT(n) (UINT32_C(1) << (n))

/*
 * The capabilities to become the user of a command, to signal that user's processes, and
 * to change the root for a command. The numbers of all are below 32.
 */
static const uint32_t kept =
	BIT(CAP_SETUID) | BIT(CAP_SETGID) | BIT(CAP_KILL) | BIT(CAP_SYS_CHROOT);

noreturn void die(enum stage stage, int error)
{
	send_failure(FIRST, EVENT_FATAL, stage, error);
	_exit(stage);
}

/* is_seqpacket tells whether fd is a socket of that type, listening or not. */
static bool is_seqpacket(int fd, int listening)
{
	int type = 0, accepts = 0;
	socklen_t size = sizeof(int);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
	       getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) == 0 &&
	       type == SOCK_SEQPACKET && accepts == listening;
}

/* move moves a descriptor. If from is not open, it closes to and returns false. */
static bool move(int from, int to)
{
	if (dup3(from, to, O_CLOEXEC) >= 0)
		return true;
	close(to);
	return false;
}

/*
 * keep_descriptors moves the inherited descriptors, the highest first, so that no
 * move overwrites a descriptor that is still to be moved. It closes all others
 * above stdio. It returns whether there is a listener, and sets filter if there is
 * a filter. STORE and SYNC may be missing; the agent only keeps them open.
 */
static bool keep_descriptors(bool *filter)
{
	bool listener;

	*filter = move(INHERITED_FILTER, FILTER);
	move(INHERITED_SYNC, SYNC);
	move(INHERITED_STORE, STORE);
	listener = move(INHERITED_LISTENER, LISTENER);
	if (!is_seqpacket(INHERITED_FIRST, 0) || !move(INHERITED_FIRST, FIRST) ||
	    syscall(SYS_close_range, CHILDREN, LOOP, 0) < 0 ||
	    syscall(SYS_close_range, FILTER + 1, ~0U, 0) < 0)
		_exit(STAGE_CONTROL);
	/* If a host gives up before it was accepted, accept(2) must not block. */
	if (listener && (!is_seqpacket(LISTENER, 1) || fcntl(LISTENER, F_SETFL, O_NONBLOCK) < 0))
		die(STAGE_LISTENER, ENOTSOCK);
	return listener;
}

static bool is_null(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return false;
	errno = EINVAL;
	return S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3);
}

/*
 * own_stdio replaces stdio by the sandbox's own /dev/null. A command without stdin gets
 * the agent's, so this must not be a file of the host. The host's programs can lock
 * the inode of the host's /dev/null.
 */
static void own_stdio(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);

	if (null < 0 || !is_null(null))
		die(STAGE_STDIO, errno);
	for (int fd = 0; fd < 3; fd++)
		if (!is_null(fd) || dup2(null, fd) < 0)
			die(STAGE_STDIO, errno);
	close(null);
}

/* The agent shares the pid namespace of the host, and is not process 1 of its own. */
static bool shares_pids;

/*
 * check_place has the orphans of a shared pid namespace become children of the agent,
 * as those of its own pid namespace do by themselves.
 */
static void check_place(void)
{
	if (shares_pids == (getpid() == 1))
		die(STAGE_PID, EINVAL);
	if (shares_pids && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
		die(STAGE_PID, errno);
}

/*
 * leave: in a shared pid namespace the agent may signal the processes of its user
 * namespace, and no others: it has CAP_KILL only there, and no process elsewhere has
 * its id. kill(2) holds off forks meanwhile, so that no process escapes.
 */
noreturn void leave(void)
{
	if (shares_pids)
		kill(-1, SIGKILL);
	_exit(0);
}

static void check_identity(void)
{
	uid_t ruid, euid, suid;
	gid_t rgid, egid, sgid;

	if (getresuid(&ruid, &euid, &suid) < 0 ||
	    getresgid(&rgid, &egid, &sgid) < 0 || setgroups(0, NULL) < 0)
		die(STAGE_IDENTITY, errno);
	if (ruid != AGENT_ID || euid != AGENT_ID || suid != AGENT_ID ||
	    rgid != AGENT_ID || egid != AGENT_ID || sgid != AGENT_ID)
		die(STAGE_IDENTITY, EINVAL);
}

/* empty_bounding_set ends at the first number that the kernel does not know. */
static void empty_bounding_set(void)
{
	int set;

	for (unsigned long cap = 0; (set = prctl(PR_CAPBSET_READ, cap, 0, 0, 0)) >= 0; cap++)
		if (set > 0 && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			die(STAGE_PRIVILEGES, errno);
}

static bool has_only_kept(void)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct c[2];

	return syscall(SYS_capget, &h, c) == 0 &&
	       c[0].effective == kept && c[0].permitted == kept &&
	       (c[0].inheritable | c[1].effective | c[1].permitted |
		c[1].inheritable) == 0;
}

/*
 * shed_privileges keeps four capabilities and drops all others. No execve(2) passes
 * the four on: there are no ambient capabilities, the bounding set is empty, and id 0
 * has no special rights. The securebits are locked, also for every command.
 */
static void shed_privileges(void)
{
	const unsigned long bits =
		SECBIT_NOROOT | SECBIT_NOROOT_LOCKED |
		SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
		SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct c[2] = { { kept, kept, 0 } };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) < 0)
		die(STAGE_PRIVILEGES, errno);
	empty_bounding_set();
	if (syscall(SYS_capset, &h, c) < 0)
		die(STAGE_PRIVILEGES, errno);
	if (!has_only_kept())
		die(STAGE_PRIVILEGES, EPERM);
}

/*
 * no_core forbids core dumps of the agent and of its children. The host cannot set
 * this limit from outside: the user namespace belongs to an id of the sandbox.
 */
static void no_core(void)
{
	const struct rlimit none = { 0, 0 };

	if (setrlimit(RLIMIT_CORE, &none) < 0)
		die(STAGE_DUMPABLE, errno);
}

static void hide_memory(void)
{
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		die(STAGE_DUMPABLE, errno);
	if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0)
		die(STAGE_DUMPABLE, EPERM);
}

/*
 * settle_signals sets every signal to its default action. The kernel drops a signal
 * to process 1 of a pid namespace if the process has no handler for it and does not
 * block it. So the agent blocks only SIGCHLD, and reads it from a signalfd. A child
 * that stops or continues does not wake the agent. In a shared pid namespace the kernel
 * drops no signals, so the agent blocks all of them there.
 */
static void settle_signals(void)
{
	const unsigned long plain[4] = { 0 }; /* the kernel's struct: SIG_DFL, no flags */
	struct sigaction child = { .sa_handler = SIG_DFL, .sa_flags = SA_NOCLDSTOP };
	const unsigned long all[1] = { ~0UL };
	sigset_t blocked;

	for (int n = 1; n < NSIG; n++)
		/* A system call, since libc refuses two signals of its own. */
		if (syscall(SYS_rt_sigaction, n, plain, NULL, sizeof(plain[0])) < 0 &&
		    n != SIGKILL && n != SIGSTOP)
			die(STAGE_SIGNALS, errno);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGCHLD);
	if (sigaction(SIGCHLD, &child, NULL) < 0 ||
	    sigprocmask(SIG_SETMASK, &blocked, NULL) < 0)
		die(STAGE_SIGNALS, errno);
	/* A system call, since sigfillset(3) leaves out the signals of libc. */
	if (shares_pids && syscall(SYS_rt_sigprocmask, SIG_SETMASK, all, NULL, sizeof(all)) < 0)
		die(STAGE_SIGNALS, errno);
	if (signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK) != CHILDREN)
		die(STAGE_SIGNALS, errno);
}

/*
 * enter_filter loads the filter, or checks that the starter has loaded one. It comes
 * last: the steps before it may need calls that the filter forbids.
 */
static void enter_filter(bool has_file)
{
	if (has_file && !filter_load(FILTER))
		die(STAGE_SECCOMP, errno);
	close(FILTER);
	if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != SECCOMP_MODE_FILTER)
		die(STAGE_SECCOMP, EPERM);
	if (!filter_settle())
		die(STAGE_SECCOMP, errno);
}

bool start(bool shared)
{
	bool filter, listener = keep_descriptors(&filter);

	shares_pids = shared;
	own_stdio();
	no_core();
	hide_memory();
	check_place();
	check_identity();
	shed_privileges();
	settle_signals();
	umask(022);
	prctl(PR_SET_NAME, "sandbox-agent"); /* otherwise the name is a descriptor's number */
	if (epoll_create1(EPOLL_CLOEXEC) != LOOP || chdir("/") < 0)
		die(STAGE_LOOP, errno);
	enter_filter(filter);
	hide_memory(); /* again, since a change of credentials can reset it */
	return listener;
}
