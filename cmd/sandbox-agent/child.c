/*
 * child.c - from fork(2) to execve(2): the forked child becomes the command.
 *
 * The order is the argument:
 *
 *  - First it enters its cgroup, before it touches anything of the user. The
 *    group counts and limits all later steps. If it cannot enter, it ends.
 *  - If the command has its own root, the child changes to it, by the descriptor.
 *    It then opens all names, also those in /proc, in that root. It loses
 *    SYS_CHROOT together with its other capabilities.
 *  - Then it closes every descriptor of the agent, so that it holds no socket of
 *    another exec in the later steps.
 *  - Until it has given up its capabilities nobody inside can touch it: it has
 *    the agent's id, which no exec may have, and is not dumpable. Once it has
 *    the user's id it is still not dumpable, and a process of that user can
 *    kill or stop it, but neither read nor trace it. The agent does not wait
 *    for it, so a child that is stopped here holds up only its own exec.
 *  - All that the user could have swapped (/dev/ptmx, the directory, the program)
 *    is opened as that user, with no more rights than the user has.
 *  - It reads its ids and capabilities back before it opens anything of the user.
 *    If they are wrong, it ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <termios.h>
#include <unistd.h>

#include "child.h"
#include "event.h"
#include "filter.h"
#include "payload.h"

/*
 * Where the child has its one socket, and the program if it came as a
 * descriptor; both close-on-exec.
 */
enum { SETUP = 3, PROGRAM = 4 };

/* fail ends the child, having said why. */
static noreturn void fail(enum stage stage, int error)
{
	send_failure(SETUP, EVENT_FAILED, stage, error);
	_exit(126);
}

/*
 * enter_cgroup has v1's groups take this process: the rights of the descriptor's
 * opener count, and "0" is the writer. The fork was into the group of v2.
 */
static void enter_cgroup(const struct exec_request *request)
{
	for (size_t i = 0; i < request->ntasks; i++)
		if (write(request->tasks[i], "0", 1) != 1)
			fail(STAGE_CGROUP, errno);
}

/*
 * enter_root is for a command that sees other mounts than the sandbox. The
 * working directory goes first, so that it is within the root.
 */
static void enter_root(const struct exec_request *request)
{
	if (request->root >= 0 && (fchdir(request->root) < 0 || chroot(".") < 0))
		fail(STAGE_ROOT, errno);
}

/* enter_network: no command has a network namespace of its own yet. */
static void enter_network(const struct exec_request *request)
{
	if (request->network >= 0)
		fail(STAGE_NETWORK, EOPNOTSUPP);
}

/*
 * keep_descriptors leaves 0-2, the set-up socket and the program. The agent's
 * own fill 0-4, so those passed are all above the places they are moved to, and
 * no dup overwrites one that is still needed.
 */
static void keep_descriptors(const struct exec_request *request)
{
	for (int i = 0; i < 3; i++)
		if (request->stdio[i] >= 0 && dup2(request->stdio[i], i) < 0)
			fail(STAGE_DESCRIPTORS, errno);
	if (request->program >= 0 && dup3(request->program, PROGRAM, O_CLOEXEC) < 0)
		fail(STAGE_DESCRIPTORS, errno);
	if (syscall(SYS_close_range, request->program < 0 ? PROGRAM : PROGRAM + 1, ~0U, 0) < 0)
		fail(STAGE_DESCRIPTORS, errno);
}

/* receive fills size bytes at to with whole messages. */
static void receive(char *to, size_t size)
{
	while (size > 0) {
		struct pollfd more = { .fd = SETUP, .events = POLLIN };
		ssize_t n = recv(SETUP, to, size, MSG_DONTWAIT | MSG_TRUNC);

		if (n < 0 && errno == EAGAIN && poll(&more, 1, -1) == 1)
			continue;
		if (n < 0)
			fail(STAGE_PAYLOAD, errno);
		if (n == 0 || (size_t)n > size)
			fail(STAGE_PAYLOAD, EINVAL);
		to += n;
		size -= (size_t)n;
	}
}

/* load receives the payload into memory of the child's own, and checks it. */
static void load(struct payload *p, size_t size)
{
	size_t vectors = payload_room(size) * sizeof(char *);
	char *memory;

	if (size > MAX_PAYLOAD)
		fail(STAGE_PAYLOAD, E2BIG);
	/* The vectors come first: a mapping's start is aligned for them. */
	memory = mmap(NULL, vectors + size, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail(STAGE_PAYLOAD, errno);
	receive(memory + vectors, size);
	if (!payload_parse(p, memory + vectors, size,
			   (char **)(void *)memory, payload_room(size)))
		fail(STAGE_PAYLOAD, EINVAL);
}

/* new_session also unblocks the signals that the agent blocks. */
static void new_session(void)
{
	sigset_t none;

	sigemptyset(&none);
	if (setsid() < 0 || sigprocmask(SIG_SETMASK, &none, NULL) < 0)
		fail(STAGE_SESSION, errno);
}

/*
 * open_oom_score opens the child's own file. Of a process that is not dumpable
 * that file belongs to a root outside the sandbox, so the child is dumpable
 * for the length of one open(2): at that moment it has the agent's id still,
 * and every process that shares this id is the agent or such a child.
 */
static int open_oom_score(void)
{
	int fd, error;

	if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0)
		fail(STAGE_OOM_SCORE, errno);
	fd = open("/proc/self/oom_score_adj",
		  O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	error = errno;
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		fail(STAGE_OOM_SCORE, errno);
	if (fd < 0)
		fail(STAGE_OOM_SCORE, error);
	return fd;
}

/*
 * raise_oom_score has the kernel choose the command before the agent. A root
 * may hold anything at /proc, so the file must be procfs's.
 */
static void raise_oom_score(unsigned int score)
{
	struct statfs fs;
	char text[4], *first = text + sizeof(text);
	size_t length;
	int fd;

	if (score == 0)
		return;
	fd = open_oom_score();
	if (fstatfs(fd, &fs) < 0)
		fail(STAGE_OOM_SCORE, errno);
	if (fs.f_type != PROC_SUPER_MAGIC)
		fail(STAGE_OOM_SCORE, EINVAL);
	/* No leading zero: the kernel would read an octal number. */
	for (; score > 0 && first > text; score /= 10)
		*--first = (char)('0' + score % 10);
	length = (size_t)(text + sizeof(text) - first);
	if (write(fd, first, length) != (ssize_t)length)
		fail(STAGE_OOM_SCORE, errno);
	close(fd);
}

static void set_rlimits(const struct payload *p)
{
	for (size_t i = 0; i < p->head.rlimits; i++) {
		struct rlimit l = { p->rlimits[i].soft, p->rlimits[i].hard };

		if (setrlimit((int)p->rlimits[i].resource, &l) < 0)
			fail(STAGE_RLIMITS, errno);
	}
}

/* is_user_only tells whether the ids are the user's and nothing else is left. */
static bool is_user_only(const struct payload *p)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct caps[2], none[2] = { 0 };
	uid_t ruid, euid, suid;
	gid_t rgid, egid, sgid;

	return getresuid(&ruid, &euid, &suid) == 0 &&
	       ruid == p->head.uid && euid == p->head.uid && suid == p->head.uid &&
	       getresgid(&rgid, &egid, &sgid) == 0 &&
	       rgid == p->head.gid && egid == p->head.gid && sgid == p->head.gid &&
	       getgroups(0, NULL) == (int)p->head.groups &&
	       syscall(SYS_capget, &h, caps) == 0 &&
	       memcmp(caps, none, sizeof(caps)) == 0 &&
	       prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0;
}

/*
 * become_user changes ids and drops every capability: going from one id that
 * is not 0 to another clears none by itself. A change of ids sets dumpable to
 * fs.suid_dumpable, which may be 1, so that is undone first; until then the
 * capabilities still held keep a tracer without them away.
 */
static void become_user(const struct payload *p)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { 0 };

	if (setgroups(p->head.groups, p->groups) < 0 ||
	    setresgid(p->head.gid, p->head.gid, p->head.gid) < 0 ||
	    setresuid(p->head.uid, p->head.uid, p->head.uid) < 0 ||
	    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ||
	    syscall(SYS_capset, &h, none) < 0)
		fail(STAGE_CREDENTIALS, errno);
	if (!is_user_only(p))
		fail(STAGE_CREDENTIALS, EPERM);
}

/*
 * keep_newlines has the terminal pass each newline of the output on as it is.
 * Otherwise the terminal makes "\r\n" of it.
 */
static bool keep_newlines(int slave)
{
	struct termios t;

	if (tcgetattr(slave, &t) < 0)
		return false;
	t.c_oflag &= ~(tcflag_t)ONLCR;
	return tcsetattr(slave, TCSANOW, &t) == 0;
}

/*
 * open_terminal makes a pty the controlling terminal and sends its master to
 * the host. The other end comes from the master (TIOCGPTPEER, Linux 4.13), not
 * from a path: /dev may be the user's to change.
 */
static void open_terminal(const struct payload *p)
{
	struct event e = { .kind = EVENT_TERMINAL };
	struct winsize size = {
		.ws_row = (unsigned short)p->head.rows,
		.ws_col = (unsigned short)p->head.columns,
	};
	int unlock = 0, master, slave;

	master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0)
		fail(STAGE_TERMINAL, errno);
	slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0 || ioctl(master, TIOCSWINSZ, &size) < 0 ||
	    (p->head.flags & PAYLOAD_PLAIN_NEWLINES && !keep_newlines(slave)) ||
	    ioctl(slave, TIOCSCTTY, 0) < 0 || dup2(slave, 0) < 0 ||
	    dup2(slave, 1) < 0 || dup2(slave, 2) < 0)
		fail(STAGE_TERMINAL, errno);
	if (!send_event(SETUP, &e, master))
		fail(STAGE_TERMINAL, errno);
}

/*
 * enter_directory goes where the command starts. A directory reached through a
 * descriptor's link in /proc can lie outside the sandbox's root; getcwd(2)
 * then answers with a path that does not start with a slash.
 */
static void enter_directory(const char *directory)
{
	char path[PATH_MAX];

	if (chdir(directory) < 0 || syscall(SYS_getcwd, path, sizeof(path)) < 0)
		fail(STAGE_DIRECTORY, errno);
	if (path[0] != '/')
		fail(STAGE_DIRECTORY, EXDEV);
}

/* path_of is the PATH the command will have; without one, POSIX's own. */
static const char *path_of(char *const *envp)
{
	for (; *envp; envp++)
		if (strncmp(*envp, "PATH=", 5) == 0)
			return *envp + 5;
	return "/bin:/usr/bin";
}

/*
 * exec_on_path is execvpe(3) without its fallback to a shell: the errors that
 * mean "not here" go on to the next place, EACCES is remembered, any other is
 * the answer. Returns the errno; returning at all is failure.
 */
static int exec_on_path(const char *file, char *const *argv, char *const *envp)
{
	char path[PATH_MAX];
	int denied = 0;
	size_t length = strlen(file);

	if (length == 0)
		return ENOENT;
	if (strchr(file, '/')) {
		execve(file, argv, envp);
		return errno;
	}
	for (const char *place = path_of(envp), *end; ; place = end + 1) {
		end = strchrnul(place, ':');
		size_t n = (size_t)(end - place);

		if (n + 1 + length < sizeof(path)) {
			memcpy(path, place, n);
			if (n > 0)
				path[n++] = '/';
			memcpy(path + n, file, length + 1);
			execve(path, argv, envp);
			if (errno == EACCES)
				denied = EACCES;
			else if (errno != ENOENT && errno != ENOTDIR &&
				 errno != ESTALE && errno != ENODEV &&
				 errno != ETIMEDOUT)
				return errno;
		}
		if (!*end)
			return denied ? denied : ENOENT;
	}
}

/* exec_program executes the program that came as a descriptor. Returning is failure. */
static int exec_program(char *const *argv, char *const *envp)
{
	syscall(SYS_execveat, PROGRAM, "", argv, envp, AT_EMPTY_PATH);
	return errno;
}

noreturn void child_run(const struct exec_request *request)
{
	static struct payload p;

	if (dup3(request->setup, SETUP, O_CLOEXEC) < 0)
		_exit(126);
	enter_cgroup(request);
	enter_root(request);
	enter_network(request);
	keep_descriptors(request);
	load(&p, request->payload);
	new_session();
	raise_oom_score(p.head.oom_score_adj);
	set_rlimits(&p);
	if (!filter_narrow())
		fail(STAGE_NARROW, errno);
	become_user(&p);
	if (p.head.flags & PAYLOAD_TTY)
		open_terminal(&p);
	enter_directory(p.directory);

	/* Only 0-2 and the verdict stay of all that was opened. */
	if (syscall(SYS_close_range, SETUP, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
		fail(STAGE_DESCRIPTORS, errno);
	if (request->program >= 0)
		fail(STAGE_EXEC, exec_program(p.argv, p.envp));
	fail(STAGE_EXEC, exec_on_path(p.argv[0], p.argv, p.envp));
}
