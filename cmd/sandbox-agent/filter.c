/*
 * filter.c - the seccomp filters: the sandbox's own, and one of each exec.
 *
 * On cgroup v2 the sandbox's lets clone3 through, which the agent needs to fork
 * into a cgroup; a filter cannot look at the flags of that call, which lie in memory,
 * so no exec may have it. Its answer is ENOSYS, on which a libc falls back to
 * clone, whose flags a filter can look at.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "filter.h"
#include "protocol.h"

/* Those that change who is asked, or for what, are not of a stored filter. */
static const uint32_t known_flags =
	SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_LOG | SECCOMP_FILTER_FLAG_SPEC_ALLOW;

static bool load(unsigned int flags, const struct sock_fprog *program)
{
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, program) == 0;
}

bool filter_is_valid(const void *bytes, size_t size)
{
	struct filter_header h;

	if (size < sizeof(h))
		return false;
	memcpy(&h, bytes, sizeof(h));
	return (h.flags & ~known_flags) == 0 && h.count >= 1 && h.count <= BPF_MAXINSNS &&
	       size == sizeof(h) + h.count * sizeof(struct sock_filter);
}

/*
 * filter_load reads into memory that is given back: the agent is small for as
 * long as the sandbox lives. One byte more than a filter can have is room
 * enough to see that there are too many.
 */
bool filter_load(int fd)
{
	const size_t room = sizeof(struct filter_header) + BPF_MAXINSNS * sizeof(struct sock_filter) + 1;
	char *memory = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct sock_fprog program;
	struct filter_header h;
	ssize_t size;
	bool loaded = false;
	int error;

	if (memory == MAP_FAILED)
		return false;
	size = pread(fd, memory, room, 0);
	if (size >= 0 && !filter_is_valid(memory, (size_t)size)) {
		errno = EINVAL;
	} else if (size >= 0) {
		memcpy(&h, memory, sizeof(h));
		program.len = (unsigned short)h.count;
		program.filter = (struct sock_filter *)(void *)(memory + sizeof(h));
		loaded = load(h.flags, &program);
	}
	error = errno;
	munmap(memory, room);
	errno = error;
	return loaded;
}

/*
 * filter_hide_clone3 need not know the architecture: the number is the same
 * through every entry of a kernel that has this one (x86-64's own and i386's,
 * aarch64's own and arm's), but for the bit that marks x32. Speculation is as
 * the sandbox's filter left it, unless that has no seccomp(2) for the flag that
 * says so: prctl(2) the agent needs anyway.
 */
_Static_assert(SYS_clone3 == 435, "clone3 has its number from the table that is common to all");

/* That this process and all it starts find none. */
static bool hidden;

bool filter_hide_clone3(void)
{
	enum { X32 = 0x40000000 };
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~(uint32_t)X32),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	const struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	if (!hidden)
		hidden = load(SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) ||
			 prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
	return hidden;
}

/*
 * filter_settle: on cgroup v1 the agent has no need of clone3, and the sandbox's
 * filter answers it as that of a command would. To load what hides it once saves
 * each command the making of a program in the kernel, and its end. What is asked
 * for here is nothing: arguments of no size.
 */
bool filter_settle(void)
{
	if (syscall(SYS_clone3, NULL, 0) < 0 && errno == ENOSYS)
		return filter_hide_clone3();
	return true;
}
