/* Takes of one thing that the kernel counts per user or per system as many as
 * wanted, or all it can get.
 *
 *	hoard KIND N    takes N, and ends with status 1 if it gets fewer
 *	hoard KIND all  takes all, prints "taken" and keeps them
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int take_instance(long n) {
    (void)n;
    return inotify_init1(IN_CLOEXEC) >= 0;
}

/* Each instance can watch each file once: many instances need few files. */
enum { FILES = 4096 };

static int take_watch(long n) {
    static int instance = -1;
    char name[32];
    if (n % FILES == 0) instance = inotify_init1(IN_CLOEXEC);
    snprintf(name, sizeof name, "watched%ld", n % FILES);
    if (n < FILES) {
        int fd = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        if (fd < 0) return 0;
        close(fd);
    }
    return instance >= 0 && inotify_add_watch(instance, name, IN_MODIFY) >= 0;
}

/* The kernel queues the signal of a timer when it makes the timer. */
static int take_signal(long n) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    timer_t timer;
    (void)n;
    return timer_create(CLOCK_MONOTONIC, &event, &timer) == 0;
}

static int take_queue(long n) {
    char name[64];
    struct mq_attr attr = {.mq_maxmsg = 10, .mq_msgsize = 8192};
    snprintf(name, sizeof name, "/hoard-%d-%ld", getpid(), n);
    mqd_t queue = mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, &attr);
    if (queue != (mqd_t)-1) mq_unlink(name);
    return queue != (mqd_t)-1;
}

/* Bytes that nobody reads, in the buffers of connections over loopback: 4 KiB at a
 * time, at most 512 MiB. */
enum { CHUNK = 4096, CHUNKS = 512 << 8 };

static int connection(void) {
    static int listener = -1;
    static struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    if (listener < 0) {
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        listener = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(listener, (void *)&address, size) || listen(listener, 16) || getsockname(listener, (void *)&address, &size)) return -1;
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (void *)&address, size) || accept(listener, NULL, NULL) < 0) return -1;
    return fd;
}

static int take_bytes(long n) {
    static int fd = -1;
    static char chunk[CHUNK];
    if (n >= CHUNKS) return 0;
    if (fd >= 0 && send(fd, chunk, sizeof chunk, MSG_DONTWAIT) == sizeof chunk) return 1;
    fd = connection();
    return fd >= 0 && send(fd, chunk, sizeof chunk, MSG_DONTWAIT) == sizeof chunk;
}

static const struct {
    const char *name;
    int (*take)(long n);
} kinds[] = {
    {"instances", take_instance},
    {"watches", take_watch},
    {"signals", take_signal},
    {"queues", take_queue},
    {"bytes", take_bytes},
};

static int hoard(int (*take)(long n), const char *count) {
    int all = strcmp(count, "all") == 0;
    long wanted = all ? LONG_MAX : atol(count), n = 0;
    while (n < wanted && take(n)) n++;
    if (!all && n < wanted) {
        fprintf(stderr, "%ld of %ld: %s\n", n, wanted, strerror(errno));
        return 1;
    }
    if (!all) return 0;
    fprintf(stderr, "%ld: %s\n", n, strerror(errno));
    puts("taken");
    fflush(stdout);
    pause();
    return 0;
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc == 3 && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(argv[1], kinds[i].name) == 0) return hoard(kinds[i].take, argv[2]);
    fprintf(stderr, "usage: hoard KIND N|all\n");
    return 2;
}
