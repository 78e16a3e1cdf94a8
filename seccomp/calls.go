package seccomp

// The calls whose arguments are not looked at, by theme. A profile takes whole groups:
// default and debug all of them, strict those of compute. Names that only one of amd64 and
// arm64 has stand among the others; libcontainer skips names that the running architecture
// or its libseccomp does not know.

// compute has the calls of programs that work on files and memory in one process tree. The
// agent, PID 1 of every sandbox, needs no other calls.
const compute = fileCalls + memoryCalls + processCalls + identityCalls +
	schedulingCalls + signalCalls + timeCalls + waitCalls + connectedSocketCalls +
	confinementCalls

// beyondCompute has the calls that strict leaves out.
const beyondCompute = networkCalls + sharedCalls + asyncCalls + watchCalls +
	hostwideCalls + schedulerPolicyCalls

// Those that take a mode are in rules.go, fcntl and those that set attributes in quota.go. The xattrat calls are of Linux 6.13.
const fileCalls = `
access chdir chown close close_range copy_file_range dup dup2 dup3 faccessat
faccessat2 fadvise64 fallocate fchdir fchown fchownat fdatasync fgetxattr
flistxattr flock fremovexattr fstat fstatfs fsync ftruncate futimesat
getcwd getdents getdents64 getxattr getxattrat lchown lgetxattr link linkat
listxattr listxattrat llistxattr lremovexattr lseek lstat mkdir
mkdirat newfstatat pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2
read readahead readlink readlinkat readv removexattr removexattrat rename
renameat renameat2 rmdir sendfile splice stat statfs statx
symlink symlinkat sync_file_range tee truncate umask unlink unlinkat utime
utimensat utimes write writev
`

// map_shadow_stack is of Linux 6.6 and needed by programs built with it, mseal
// of 6.10 and called by newer C libraries on every start.
const memoryCalls = `
brk madvise map_shadow_stack membarrier memfd_create mincore mlock mlock2
mlockall mmap mprotect mremap mseal msync munlock munlockall munmap pkey_alloc
pkey_free pkey_mprotect
`

// uretprobe is not called by programs: the kernel's return probes jump to it,
// and a process probed from the host would crash without it (Linux 6.11).
const processCalls = `
arch_prctl execve execveat exit exit_group fork futex futex_requeue futex_wait
futex_waitv futex_wake get_robust_list getcpu getpgid getpgrp getpid getppid
getrandom getrlimit getrusage getsid gettid pidfd_open prctl prlimit64
restart_syscall rseq set_robust_list set_tid_address setpgid setrlimit setsid
sysinfo uname uretprobe vfork wait4 waitid
`

// Without a capability these change nothing that was not the caller's before.
const identityCalls = `
capget capset getegid geteuid getgid getgroups getresgid getresuid getuid
setfsgid setfsuid setgid setgroups setregid setresgid setresuid setreuid setuid
`

const schedulingCalls = `
getpriority ioprio_get sched_get_priority_max sched_get_priority_min
sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_rr_get_interval sched_setaffinity sched_yield setpriority
`

const signalCalls = `
kill pause pidfd_send_signal rt_sigaction rt_sigpending rt_sigprocmask
rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
sigaltstack signalfd signalfd4 tgkill tkill
`

const timeCalls = `
alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday
nanosleep setitimer time timer_create timer_delete timer_getoverrun
timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times
`

const waitCalls = `
epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd
eventfd2 poll ppoll pselect6 select
`

// The calls of a process on a socket that it was given or that has a peer already. Without
// networkCalls no new peer can be reached. setsockopt is in quota.go.
const connectedSocketCalls = `
getpeername getsockname getsockopt recvfrom recvmmsg recvmsg sendmmsg sendmsg
shutdown
`

// A process takes rights from itself: always welcome.
const confinementCalls = `
landlock_add_rule landlock_create_ruleset landlock_restrict_self
`

const networkCalls = `
accept accept4 bind connect listen sendto
`

// System V and POSIX IPC by name or key; both live in the sandbox's own IPC
// namespace.
const sharedCalls = `
mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl
msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget
`

const asyncCalls = `
io_cancel io_destroy io_getevents io_pgetevents io_submit
`

const watchCalls = `
inotify_add_watch inotify_init inotify_init1 inotify_rm_watch
`

// These reach for something of the whole host: its clock (to read it only,
// without CAP_SYS_TIME) and the dirty pages of its file systems.
const hostwideCalls = `
adjtimex clock_adjtime sync syncfs
`

const schedulerPolicyCalls = `
ioprio_set sched_setattr sched_setparam sched_setscheduler
`

// notThere are answered with ENOSYS, as by a kernel without them, and programs
// take their older way. clone3 and openat2 keep flags and mode in memory, where
// a filter cannot look, and would lead around the rules for clone and open.
// io_setup takes from fs.aio-max-nr, which is one count for the whole host. The
// others are new, little used, and show or take something of the host.
const notThere = `
cachestat clone3 io_setup listmount memfd_secret openat2 statmount
`

// debugCalls look into another process of the sandbox, which gdb and strace do.
const debugCalls = `
kcmp pidfd_getfd process_vm_readv process_vm_writev ptrace
`
