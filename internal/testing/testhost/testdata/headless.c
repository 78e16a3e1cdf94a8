// headless ends its main thread. Another thread then says that it is ready. With the argument "once" it
// ends the process with status 7, else SIGTERM does.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int main_thread = 1; // the kernel writes 0 when the main thread ends
static sigset_t term;

static void *
outlive(void *once)
{
	int signal;

	while (__atomic_load_n(&main_thread, __ATOMIC_SEQ_CST) != 0)
		syscall(SYS_futex, &main_thread, FUTEX_WAIT, 1, NULL, NULL, 0);
	if (write(STDOUT_FILENO, "ready\n", 6) != 6)
		_exit(1);
	if (!once)
		sigwait(&term, &signal);
	_exit(7);
}

int
main(int argc, char **argv)
{
	pthread_t thread;
	int once = argc > 1 && strcmp(argv[1], "once") == 0;

	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &term, NULL);
	if (pthread_create(&thread, NULL, outlive, once ? &term : NULL) != 0)
		return 1;
	syscall(SYS_set_tid_address, &main_thread);
	syscall(SYS_exit, 0);
	return 1;
}
