/*
 * narrow - asks for clone3 and for a seccomp filter through every entry of the kernel,
 * and prints what each answers. The size of clone3's arguments is one that no version
 * takes, and no filter is where the address says: EINVAL and EFAULT mean that the call
 * was looked at. Nothing is loaded.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>

static long native(long number, long a, long b, long c)
{
#if defined(__x86_64__)
	long answer;

	__asm__ volatile("syscall" : "=a"(answer)
			 : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return answer;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
	return x0;
#endif
}

#if defined(__x86_64__)
enum { SECCOMP = 317, PRCTL = 157 };

static long x32(long number, long a, long b, long c)
{
	return native(0x40000000 | number, a, b, c);
}

static sigjmp_buf absent;

/* Without IA32 emulation the kernel answers the entry with SIGSEGV. */
static void without_entry(int number)
{
	(void)number;
	siglongjmp(absent, 1);
}

static long i386(long number, long a, long b, long c)
{
	long answer;

	__asm__ volatile("int $0x80" : "=a"(answer) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
	return (int)answer;
}
#else
enum { SECCOMP = 277, PRCTL = 167 };
#endif

static void ask(const char *entry, long (*enter)(long, long, long, long), long seccomp, long prctl)
{
	enum { CLONE3 = 435, SET_MODE_FILTER = 1, PR_SET_SECCOMP = 22, MODE_FILTER = 2 };

	printf("clone3 %s %ld\n", entry, enter(CLONE3, 0, 1, 0));
	printf("seccomp %s %ld\n", entry, enter(seccomp, SET_MODE_FILTER, 0, 0));
	printf("prctl %s %ld\n", entry, enter(prctl, PR_SET_SECCOMP, MODE_FILTER, 0));
}

int main(void)
{
	enum { PR_GET_DUMPABLE = 3 };

	ask("native", native, SECCOMP, PRCTL);
#if defined(__x86_64__)
	/* An option is an int: the kernel does not look at the upper half. */
	printf("prctl high %ld\n", native(PRCTL, 22 | 1L << 32, 2, 0));
	ask("x32", x32, SECCOMP, PRCTL);
	signal(SIGSEGV, without_entry);
	if (sigsetjmp(absent, 1) == 0)
		ask("i386", i386, 354, 172);
	else
		printf("no i386\n");
	signal(SIGSEGV, SIG_DFL);
#endif
	printf("another prctl %ld\n", native(PRCTL, PR_GET_DUMPABLE, 0, 0));
	return 0;
}
