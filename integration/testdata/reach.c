/* What a program of a sandbox tries on processes by their numbers. Each thing that
 * it achieves is a line. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ioprio.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void did(const char *what, int pid) {
    printf("%s %d\n", what, pid);
    fflush(stdout);
}

/* reads and opens all of a process's directory in /proc */
static void look(int pid) {
    static const char *const files[] = {"auxv", "cmdline", "comm", "environ", "io", "maps", "mem", "mounts",
        "oom_score_adj", "pagemap", "personality", "sched", "stack", "stat", "status", "syscall", "wchan"};
    static const char *const links[] = {"cwd", "exe", "root", "ns/mnt", "ns/pid", "ns/user", "fd/0"};
    static const char *const directories[] = {"", "fd", "map_files", "net", "task"};
    char path[64], what[96], byte[1024];
    struct stat st;

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, files[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        snprintf(what, sizeof what, "opened %s of", files[i]);
        did(what, pid);
        close(fd);
    }
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, links[i]);
        snprintf(what, sizeof what, "followed %s of", links[i]);
        if (readlink(path, byte, sizeof byte) > 0 || stat(path, &st) == 0) did(what, pid);
    }
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, directories[i]);
        DIR *d = opendir(path);
        snprintf(what, sizeof what, "listed /%s of", directories[i]);
        if (d) {
            did(what, pid);
            closedir(d);
        }
    }
}

/* the system calls that take a number. The last ones end the process. */
static void touch(int pid) {
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)0x400000, 1};
    struct rlimit limit;
    cpu_set_t all;
    void *page = (void *)0x400000;
    int status = 0, node = 0;

    if (process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT) did("read memory of", pid);
    if (process_vm_writev(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT) did("wrote memory of", pid);
    if (prlimit(pid, RLIMIT_NOFILE, NULL, &limit) == 0) did("read limits of", pid);
    if (syscall(SYS_kcmp, getpid(), pid, KCMP_VM, 0, 0) >= 0) did("compared", pid);
    if (syscall(SYS_move_pages, pid, 1UL, &page, &node, &status, 0) >= 0) did("moved pages of", pid);
    memset(&all, 0xff, sizeof all);
    if (sched_setaffinity(pid, sizeof all, &all) == 0) did("set processors of", pid);
    if (setpriority(PRIO_PROCESS, (id_t)pid, 19) == 0) did("set priority of", pid);
    if (syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, pid, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0)) == 0)
        did("set I/O priority of", pid);
    if (setpgid(pid, 0) == 0) did("moved group of", pid);
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd >= 0) {
        if (syscall(SYS_pidfd_getfd, fd, 0, 0) >= 0) did("took a descriptor of", pid);
        if (syscall(SYS_process_madvise, fd, &there, 1UL, 21 /* MADV_PAGEOUT */, 0) >= 0) did("advised", pid);
        if (syscall(SYS_pidfd_send_signal, fd, SIGCONT, NULL, 0) == 0) did("signalled by descriptor", pid);
        close(fd);
    }
    if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) {
        did("traced", pid);
        ptrace(PTRACE_DETACH, pid, 0, 0);
    } else if (ptrace(PTRACE_ATTACH, pid, 0, 0) == 0) {
        did("attached to", pid);
    }
    if (syscall(SYS_tgkill, pid, pid, SIGCONT) == 0) did("signalled the thread", pid);
    if (kill(pid, SIGSTOP) == 0) did("stopped", pid);
    if (kill(-pid, SIGKILL) == 0) did("killed the group", pid);
    if (kill(pid, SIGKILL) == 0) did("killed", pid);
}

/* has the kernel stop the owner of a socket */
static void own_socket(int pid) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return;
    if (fcntl(ends[0], F_SETOWN, pid) == 0 && fcntl(ends[0], F_SETSIG, SIGSTOP) == 0 &&
        fcntl(ends[0], F_SETFL, O_ASYNC) == 0)
        (void)!write(ends[1], "x", 1);
    close(ends[0]);
    close(ends[1]);
}

int reach(char **pids) {
    for (; *pids; pids++) {
        look(atoi(*pids));
        own_socket(atoi(*pids));
        touch(atoi(*pids));
    }
    return 0;
}

/* kills every process that it may */
int kill_all(void) {
    static const int signals[] = {SIGSTOP, SIGTERM, SIGKILL};
    int any = 0;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) any |= kill(-1, signals[i]) == 0;
    puts(any ? "killed some" : "killed none");
    return 0;
}
