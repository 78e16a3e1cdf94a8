/*
 * filter.c - the seccomp filters: the sandbox's own, and the commands'.
 *
 * On cgroup v2 the sandbox's lets clone3 through, which the agent needs to fork
 * into a cgroup; a filter cannot look at the flags of that call, which lie in memory,
 * so no exec may have it. Its answer is ENOSYS, on which a libc falls back to
 * clone, whose flags a filter can look at.
 *
 * The sandbox's filter lets seccomp(2) through, too, for the agent loads the commands'
 * filter under it. The kernel counts the memory of filters for the whole host, so a
 * command gets EINVAL, as from a kernel without filters.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "filter.h"
#include "protocol.h"

/* The flags that a stored filter may have. The agent serves the listener: notify.c. */
static const uint32_t known_flags =
	SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_LOG | SECCOMP_FILTER_FLAG_SPEC_ALLOW |
	SECCOMP_FILTER_FLAG_NEW_LISTENER;

static int listener = -1;

static bool load(unsigned int flags, const struct sock_fprog *program)
{
	long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, program);

	if (!(flags & SECCOMP_FILTER_FLAG_NEW_LISTENER))
		return result == 0;
	listener = (int)result; /* close-on-exec */
	return result >= 0;
}

int filter_listener(void)
{
	return listener;
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
 * The numbers of calls by entry of the kernel. COMPAT is the 32-bit one. clone3 has
 * the same number in all of them. x32 has those of x86-64, and a bit.
 */
enum { X32 = 0x40000000 };
#if defined(__x86_64__)
enum { COMPAT_SECCOMP = 354, COMPAT_PRCTL = 172 };
static const uint32_t native = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
enum { COMPAT_SECCOMP = 383, COMPAT_PRCTL = 172 };
static const uint32_t native = AUDIT_ARCH_AARCH64;
#else /* no 32-bit entry is known: none is native, and all have the native numbers */
enum { COMPAT_SECCOMP = SYS_seccomp, COMPAT_PRCTL = SYS_prctl };
static const uint32_t native = 0;
#endif
_Static_assert(SYS_clone3 == 435, "clone3 has its number from the table that is common to all");

/* That this process and all it starts have the commands' filter. */
static bool narrowed;

/* The answer of seccomp(2) and prctl(PR_SET_SECCOMP). */
static uint32_t to_filters = SECCOMP_RET_ERRNO | EINVAL;

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(answer) BPF_STMT(BPF_RET | BPF_K, answer)
/* From the place HERE go to YES where the word is the value, and else to NO. */
#define IF(here, value, yes, no) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, (yes) - (here) - 1, (no) - (here) - 1)

/*
 * filter_narrow leaves speculation as the sandbox's filter has it, unless that has no
 * seccomp(2) for the flag that says so: prctl(2) the agent needs anyway. The option
 * of prctl(2) is an int, the lower half of the argument, which comes first in memory.
 */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "args[0] is the lower half");

bool filter_narrow(void)
{
	enum { COMPAT = 7, OPTION = 11, FILTERS = 13, ABSENT = 14, ALLOWED = 15 };
	struct sock_filter code[] = {
		LOAD(arch),
		IF(1, native, 2, COMPAT),
		LOAD(nr),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~(uint32_t)X32),
		IF(4, SYS_clone3, ABSENT, 5),
		IF(5, SYS_seccomp, FILTERS, 6),
		IF(6, SYS_prctl, OPTION, ALLOWED),
		[COMPAT] = LOAD(nr),
		IF(8, SYS_clone3, ABSENT, 9),
		IF(9, COMPAT_SECCOMP, FILTERS, 10),
		IF(10, COMPAT_PRCTL, OPTION, ALLOWED),
		[OPTION] = LOAD(args[0]),
		IF(12, PR_SET_SECCOMP, FILTERS, ALLOWED),
		[FILTERS] = RETURN(to_filters),
		[ABSENT] = RETURN(SECCOMP_RET_ERRNO | ENOSYS),
		[ALLOWED] = RETURN(SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	if (!narrowed)
		narrowed = load(SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) ||
			   prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
	return narrowed;
}

void filter_allow_filters(void)
{
	to_filters = SECCOMP_RET_ALLOW;
}

/* The calls that take a mode. 0xffff, the number of no call, stands for a call that the architecture lacks. */
enum { CALL_FCHMODAT2 = 452 };
#ifdef SYS_chmod
enum { CALL_CHMOD = SYS_chmod, CALL_CREAT = SYS_creat, CALL_MKNOD = SYS_mknod, CALL_OPEN = SYS_open };
#else
enum { CALL_CHMOD = 0xffff, CALL_CREAT = 0xffff, CALL_MKNOD = 0xffff, CALL_OPEN = 0xffff };
#endif

/* From the place HERE go to YES where the word has one of the bits, and else to NO. */
#define IF_BITS(here, bits, yes, no) \
	BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, (yes) - (here) - 1, (no) - (here) - 1)
#define GO(here, to) BPF_STMT(BPF_JMP | BPF_JA, (to) - (here) - 1)

/* O_TMPFILE contains O_DIRECTORY, which alone creates nothing. */
static const uint32_t creates = O_CREAT | (O_TMPFILE & ~O_DIRECTORY);

/* load_withhold: open(2) and openat(2) have a mode only where they create a file. */
static bool load_withhold(void)
{
	enum { OPEN = 13, OPENAT = 15, MODE1 = 17, MODE2 = 19, MODE3 = 21, BIT = 22, DENIED = 23, ALLOWED = 24 };
	struct sock_filter code[] = {
		LOAD(arch),
		IF(1, native, 2, DENIED),
		LOAD(nr),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~(uint32_t)X32),
		IF(4, CALL_CHMOD, MODE1, 5),
		IF(5, SYS_fchmod, MODE1, 6),
		IF(6, CALL_CREAT, MODE1, 7),
		IF(7, CALL_MKNOD, MODE1, 8),
		IF(8, SYS_fchmodat, MODE2, 9),
		IF(9, CALL_FCHMODAT2, MODE2, 10),
		IF(10, SYS_mknodat, MODE2, 11),
		IF(11, CALL_OPEN, OPEN, 12),
		IF(12, SYS_openat, OPENAT, ALLOWED),
		[OPEN] = LOAD(args[1]),
		IF_BITS(14, creates, MODE2, ALLOWED),
		[OPENAT] = LOAD(args[2]),
		IF_BITS(16, creates, MODE3, ALLOWED),
		[MODE1] = LOAD(args[1]),
		GO(18, BIT),
		[MODE2] = LOAD(args[2]),
		GO(20, BIT),
		[MODE3] = LOAD(args[3]),
		[BIT] = IF_BITS(BIT, S_ISGID, DENIED, ALLOWED),
		[DENIED] = RETURN(SECCOMP_RET_ERRNO | EPERM),
		[ALLOWED] = RETURN(SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	return load(SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* A host may ask for filter_withhold. A host has asked for it. */
static bool awaits_withhold, withheld;

void filter_await_withhold(void)
{
	awaits_withhold = true;
}

bool filter_withhold(void)
{
	if (!withheld)
		withheld = load_withhold();
	if (!withheld)
		return false;
	awaits_withhold = false;
	return filter_settle();
}

/*
 * filter_settle loads the commands' filter in the agent if the sandbox's filter denies
 * clone3. This is so on cgroup v1, where the agent does not need clone3. Then the kernel
 * does not have to build and free a filter for each command. The call with a size of 0
 * only tests the filter. An agent that may have to load another filter cannot settle yet.
 */
bool filter_settle(void)
{
	if (!awaits_withhold && syscall(SYS_clone3, NULL, 0) < 0 && errno == ENOSYS)
		return filter_narrow();
	return true;
}
