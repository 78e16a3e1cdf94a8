/*
 * clone3 - asks for clone3 through every entry of the kernel, with a size that
 * no version of the call takes, and prints what each answers: EINVAL where it is
 * looked at, ENOSYS where it is not there.
 */
#include <stdio.h>

static long enter(long number)
{
#if defined(__x86_64__)
	long answer;

	__asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(0), "S"(1) : "rcx", "r11", "memory");
	return answer;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = 0;
	register long x1 __asm__("x1") = 1;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1) : "memory");
	return x0;
#endif
}

int main(void)
{
	printf("native %ld\n", enter(435));
#if defined(__x86_64__)
	printf("x32 %ld\n", enter(0x40000000 | 435));
	long answer;

	__asm__ volatile("int $0x80" : "=a"(answer) : "a"(435L), "b"(0L), "c"(1L) : "memory");
	printf("i386 %d\n", (int)answer);
#endif
	return 0;
}
