/* The program that the tests run inside containers: static, so that a root
 * filesystem of this one file is enough. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_signal(int n) {
    char text[32];
    int len = snprintf(text, sizeof text, "got %d\n", n);
    if (write(1, text, len) < 0) _exit(1);
    _exit(40 + n % 10);
}

/* copies stdin to stdout, and one line to stderr */
static int cat(void) {
    char buf[4096];
    ssize_t n;
    fprintf(stderr, "to stderr\n");
    while ((n = read(0, buf, sizeof buf)) > 0)
        if (write(1, buf, n) != n) return 1;
    return n < 0;
}

/* one line per open descriptor: number, a space, what it is */
static int fds(void) {
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    if (!d) return 1;
    while ((e = readdir(d))) {
        char path[64], target[256];
        int fd = atoi(e->d_name);
        if (e->d_name[0] == '.' || fd == dirfd(d)) continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        printf("%d %.*s\n", fd, n < 0 ? 0 : (int)n, target);
    }
    return 0;
}

/* waits for the signals that tests send, then says which came */
static void trap(void) {
    int list[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    for (unsigned i = 0; i < sizeof list / sizeof *list; i++) signal(list[i], on_signal);
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}

/* a line from the terminal, its size, whether it is one */
static int tty(void) {
    struct winsize w = {0};
    char line[128] = "";
    ioctl(0, TIOCGWINSZ, &w);
    printf("tty %d%d%d %dx%d\n", isatty(0), isatty(1), isatty(2), w.ws_row, w.ws_col);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    printf("line %s", line);
    return 3;
}

/* says its terminal's size whenever that changes */
static void sizes(void) {
    struct winsize w, last = {0};
    for (;; usleep(10000)) {
        if (ioctl(0, TIOCGWINSZ, &w) || (w.ws_row == last.ws_row && w.ws_col == last.ws_col)) continue;
        last = w;
        printf("%dx%d\n", w.ws_row, w.ws_col);
        fflush(stdout);
    }
}

static int ids(void) {
    gid_t groups[64];
    int n = getgroups(64, groups);
    char cwd[256];
    printf("uid %d gid %d groups", getuid(), getgid());
    for (int i = 0; i < n; i++) printf(" %d", groups[i]);
    printf(" cwd %s nnp %d\n", getcwd(cwd, sizeof cwd), prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    return 0;
}

/* as much as can be on its way at once, and a last line */
static int flood(void) {
    for (int i = 0; i < 2000; i++) printf("%d: the quick brown fox jumps over the lazy dog\n", i);
    printf("the end\n");
    return 0;
}

/* leaves a process behind that holds stdout, and ends */
static int orphan(void) {
    if (fork() == 0) {
        for (;;) pause();
    }
    printf("parent done\n");
    return 0;
}

static int notify(void) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET"), text[] = "STATUS=up\nREADY=1\nMAINPID=1";
    int s = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (!path || s < 0) return 1;
    strncpy(to.sun_path, path, sizeof to.sun_path - 1);
    return sendto(s, text, strlen(text), 0, (struct sockaddr *)&to, sizeof to) < 0 ? 2 : 0;
}

/* waits as the freezer can't stop it: in a system call that its child is asked
 * about and does not answer (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19) */
static int unfreezable(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | 1 << 5 /* WAIT_KILLABLE_RECV, newer than Debian 12's header */;
    int listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
    if (listener < 0) return 1;
    if (fork() == 0) {
        struct seccomp_notif request = {0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &request)) return 1;
        printf("ready\n");
        fflush(stdout);
        for (;;) pause();
    }
    return syscall(SYS_getpgid, 0) < 0;
}

int main(int argc, char **argv, char **env) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "exit")) return atoi(argv[2]);
    if (!strcmp(what, "die")) return kill(getpid(), atoi(argv[2]));
    if (!strcmp(what, "cat")) return cat();
    if (!strcmp(what, "fds")) return fds();
    if (!strcmp(what, "trap")) trap();
    if (!strcmp(what, "tty")) return tty();
    if (!strcmp(what, "sizes")) sizes();
    if (!strcmp(what, "ids")) return ids();
    if (!strcmp(what, "flood")) return flood();
    if (!strcmp(what, "orphan")) return orphan();
    if (!strcmp(what, "unfreezable")) return unfreezable();
    if (!strcmp(what, "notify")) return notify();
    if (!strcmp(what, "pause"))
        for (;;) pause();
    if (!strcmp(what, "args")) {
        for (int i = 2; i < argc; i++) printf("[%s]", argv[i]);
        return putchar('\n') == EOF;
    }
    if (!strcmp(what, "env")) {
        for (; *env; env++) printf("[%s]\n", *env);
        return 0;
    }
    fprintf(stderr, "probe: what is %s?\n", what);
    return 99;
}
