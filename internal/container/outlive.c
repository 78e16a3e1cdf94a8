#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "outlive.h"

// The kernel writes 0 here and wakes the waiters of the futex when the main thread ends
// (set_tid_address(2)).
static int main_thread = 1;

static void *
end_process(void *unused)
{
	(void)unused;
	while (__atomic_load_n(&main_thread, __ATOMIC_SEQ_CST) != 0)
		// Not FUTEX_PRIVATE_FLAG: the kernel wakes waiters of a shared futex.
		syscall(SYS_futex, &main_thread, FUTEX_WAIT, 1, NULL, NULL, 0);
	_exit(128 + SIGSYS);
}

int
end_with_main_thread(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, old;
	int err;

	err = pthread_attr_init(&attr);
	if (err != 0)
		return err;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 64 << 10);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old); // the thread takes no signals
	err = pthread_create(&thread, &attr, end_process, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (err == 0)
		syscall(SYS_set_tid_address, &main_thread);
	return err;
}
