/*
 * drain.c - copies the output of a detached exec to files.
 *
 * There may be no host process to read the output, and the agent must not wait
 * for a disk. So a separate process copies the first bytes of each stream to the
 * host's files and drops the rest. A command with endless output neither fills
 * the disk nor blocks. The process ends when no other process holds the pipes.
 *
 * It has the agent's id, is not dumpable and has no capability, so that no command
 * can signal or trace it. It has only four descriptors, so that no other exec has
 * to wait for its end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdnoreturn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "drain.h"

/* Of the drainer; the files of both streams lie above their pipes. */
enum { PIPES = 0, FILES = 2, END = 4 };

/* keep writes to a file, and returns false once it takes no more. */
static bool keep(int file, const char *bytes, size_t size)
{
	while (size > 0) {
		ssize_t n = write(file, bytes, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		bytes += n;
		size -= (size_t)n;
	}
	return true;
}

/*
 * has_room keeps some of a file system free: others live from it, too, and there
 * may be many detached execs, each within its limit.
 */
static bool has_room(int file)
{
	const uint64_t most = UINT64_C(256) << 20;
	struct statfs fs;
	uint64_t free;

	if (fstatfs(file, &fs) < 0)
		return false;
	free = fs.f_blocks / 8 * (uint64_t)fs.f_bsize;
	return fs.f_blocks == 0 || fs.f_bavail * (uint64_t)fs.f_bsize > (free < most ? free : most);
}

/* copy takes the bytes that one pipe has, and returns false at its end. */
static bool copy(int stream, uint64_t *left)
{
	static char bytes[1 << 16];
	ssize_t n = read(PIPES + stream, bytes, sizeof(bytes));
	size_t kept;

	if (n <= 0)
		return n < 0 && (errno == EINTR || errno == EAGAIN);
	kept = (uint64_t)n < *left ? (size_t)n : (size_t)*left;
	*left -= kept;
	if (kept > 0 && (!has_room(FILES + stream) || !keep(FILES + stream, bytes, kept)))
		*left = 0; /* a full disk: the file has the beginning of the output */
	return true;
}

static noreturn void run(const int pipes[2], const int files[2], uint64_t limit)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { 0 };
	struct pollfd ends[2] = { { .fd = PIPES, .events = POLLIN }, { .fd = PIPES + 1, .events = POLLIN } };
	uint64_t left[2] = { limit, limit };

	/* All that is passed lies above 4, so that nothing is overwritten. */
	for (int i = 0; i < 2; i++)
		if (dup2(pipes[i], PIPES + i) < 0 || dup2(files[i], FILES + i) < 0)
			_exit(1);
	if (syscall(SYS_close_range, END, ~0U, 0) < 0 || syscall(SYS_capset, &h, none) < 0 ||
	    setsid() < 0 || prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0)
		_exit(1);
	signal(SIGXFSZ, SIG_IGN); /* then it is an error of write(2) */
	prctl(PR_SET_NAME, "sandbox-output");
	while (ends[0].fd >= 0 || ends[1].fd >= 0) {
		if (poll(ends, 2, -1) < 0)
			continue;
		for (int i = 0; i < 2; i++)
			if (ends[i].fd >= 0 && ends[i].revents && !copy(i, &left[i]))
				ends[i].fd = -1;
	}
	_exit(0);
}

/*
 * make_pipe gives every user the right to write. The command's user may open
 * /dev/stdout, and that opens the pipe's inode, whose owner is the agent. A process
 * can open the pipe only if it may look into a process that holds it.
 */
static bool make_pipe(int ends[2])
{
	return pipe2(ends, O_CLOEXEC) == 0 && fchmod(ends[1], 0622) == 0;
}

pid_t drain(struct exec_request *request)
{
	int out[2] = { -1, -1 }, err[2] = { -1, -1 };
	pid_t pid = -1;
	int error;

	if (make_pipe(out) && make_pipe(err)) {
		pid = fork();
		if (pid == 0)
			run((int[2]){ out[0], err[0] }, request->output, request->limit);
	}
	error = errno;
	close(out[0]);
	close(err[0]);
	request->stdio[1] = out[1];
	request->stdio[2] = err[1];
	errno = error;
	return pid;
}
