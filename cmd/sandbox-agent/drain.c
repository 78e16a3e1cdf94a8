/*
 * drain.c - copies the output of a detached exec to files.
 *
 * There may be no host process to read the output, and the agent must not wait
 * for a disk. So a separate process copies each stream to a file of the host, in
 * the form of struct output_header: the first bytes stay, the last bytes go round
 * in a ring. A command with endless output neither fills the disk nor blocks. The
 * process ends when no other process holds the pipes.
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
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "drain.h"

/* Of the drainer; the files of both streams lie above their pipes. */
enum { PIPES = 0, FILES = 2, END = 4 };

/* A time is dropped if its neighbours are closer than this part of its age. */
enum { TIME_SHARE = 32 };

static struct stream {
	struct output_header header;
	struct output_time times[OUTPUT_TIMES];
} streams[2];

/* put writes to a place of a file, and returns false if the file does not take all. */
static bool put(int file, const void *bytes, size_t size, uint64_t at)
{
	const char *next = bytes;

	while (size > 0) {
		ssize_t n = pwrite(file, next, size, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		next += n;
		at += (uint64_t)n;
		size -= (size_t)n;
	}
	return true;
}

/* publish writes the header. A full disk cannot refuse that after the first time. */
static void publish(int stream)
{
	struct output_header *h = &streams[stream].header;

	h->check = OUTPUT_CHECK ^ h->total ^ h->begun ^ h->head ^ h->tail ^ h->times ^ h->thinned;
	put(FILES + stream, h, sizeof(*h), 0);
}

/* thin drops times that are close to each other for their age. */
static void thin(int stream, uint32_t now)
{
	struct output_time *times = streams[stream].times;
	struct output_header *h = &streams[stream].header;
	size_t kept = 1;

	for (size_t i = 1; i < OUTPUT_TIMES; i++) {
		if (i + 1 < OUTPUT_TIMES &&
		    (uint64_t)(times[i + 1].second - times[kept - 1].second) * TIME_SHARE < now - times[i].second)
			times[kept - 1].merged = 1;
		else
			times[kept++] = times[i];
	}
	h->times = 0;
	h->thinned++;
	publish(stream);
	put(FILES + stream, times, kept * sizeof(*times), sizeof(*h));
	h->times = kept;
}

/* note_time notes the second of the next byte, once. */
static void note_time(int stream)
{
	struct output_time *times = streams[stream].times;
	struct output_header *h = &streams[stream].header;
	struct timespec t;
	uint32_t now;

	if (clock_gettime(CLOCK_BOOTTIME, &t) < 0)
		return;
	now = (uint32_t)t.tv_sec;
	if (h->times > 0 && times[h->times - 1].second == now)
		return;
	if (h->times == OUTPUT_TIMES)
		thin(stream, now);
	if (h->times == OUTPUT_TIMES) {
		times[OUTPUT_TIMES - 1].merged = 1;
		return;
	}
	times[h->times] = (struct output_time){ .second = now, .offset = h->total };
	put(FILES + stream, &times[h->times], sizeof(*times), sizeof(*h) + h->times * sizeof(*times));
	h->times++;
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

/*
 * shrink is for a disk that takes no more: the ring goes on in the room that the
 * stream has. If it has been full already, only its head is kept.
 */
static void shrink(int stream)
{
	struct output_header *h = &streams[stream].header;

	if (h->total < h->head + h->tail) {
		if (h->head > h->total / 2)
			h->head = h->total / 2;
		h->tail = h->total - h->head;
	} else {
		h->tail = 0;
	}
	publish(stream);
}

/* keep_part keeps the first of the bytes, and returns how many, or 0 after a shrink. */
static size_t keep_part(int stream, const char *bytes, size_t size)
{
	struct output_header *h = &streams[stream].header;
	bool grows = h->total < h->head + h->tail;
	uint64_t at = h->total, row = h->head - at;

	if (at >= h->head) {
		if (h->tail == 0)
			return size; /* dropped */
		at = h->head + (at - h->head) % h->tail;
		row = h->head + h->tail - at;
	}
	if (size > row)
		size = (size_t)row;
	if ((!grows || has_room(FILES + stream)) && put(FILES + stream, bytes, size, OUTPUT_START + at))
		return size;
	shrink(stream);
	return 0;
}

/* keep keeps the bytes, as far as the file has room. */
static void keep(int stream, const char *bytes, size_t size)
{
	struct output_header *h = &streams[stream].header;

	note_time(stream);
	h->begun = h->total + size;
	publish(stream);
	while (size > 0) {
		size_t kept = keep_part(stream, bytes, size);

		h->total += kept;
		bytes += kept;
		size -= kept;
	}
	publish(stream);
}

/* copy takes the bytes that one pipe has, and returns false at its end. */
static bool copy(int stream)
{
	static char bytes[1 << 16];
	ssize_t n = read(PIPES + stream, bytes, sizeof(bytes));

	if (n <= 0)
		return n < 0 && (errno == EINTR || errno == EAGAIN);
	keep(stream, bytes, (size_t)n);
	return true;
}

static noreturn void run(const int pipes[2], const int files[2], uint64_t limit)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { 0 };
	struct pollfd ends[2] = { { .fd = PIPES, .events = POLLIN }, { .fd = PIPES + 1, .events = POLLIN } };

	for (int i = 0; i < 2; i++)
		streams[i].header = (struct output_header){ .head = limit - limit / 2, .tail = limit / 2 };
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
			if (ends[i].fd >= 0 && ends[i].revents && !copy(i))
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
