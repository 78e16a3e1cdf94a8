"""Leaves a mark in each place of a sandbox that a session can write, or scans all of them.

python3 marks.py leave MARK: prints the places that took the mark.
python3 marks.py scan MARK: prints the places that have the mark, and the state of the sandbox.
"""
import ctypes, fcntl, json, os, platform, socket, stat, sys, time

LIBC = ctypes.CDLL(None, use_errno=True)
ADD_KEY, KEYCTL = (217, 219) if platform.machine() == "aarch64" else (248, 250)
KEYRINGS = {"session": -3, "user": -4, "user session": -5}
LOCKED = ["/etc/passwd", "/usr/bin/env", "/tmp", "/dev/shm"]
COMMAND, MARK = sys.argv[1], sys.argv[2]
OWN = ["/", "/etc", "/run", "/tmp", "/var", "/var/tmp", "/dev", "/dev/shm", "/dev/mqueue", "/home/sandbox", "/workspace", "/srv"]


def call(name, *args):
    got = getattr(LIBC, name)(*args)
    if got < 0:
        raise OSError(ctypes.get_errno(), name)
    return got


def lock(path):
    f = os.open(path, os.O_RDONLY)
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return f


def may_lock(path):
    try:
        os.close(lock(path))
        return True
    except OSError:
        return False


def is_read_only(path):
    return os.statvfs(path).f_flag & os.ST_RDONLY


def writable_of_kernel():
    """The files of /proc and /sys that can be opened for writing, but for those of the process itself."""
    own = {d for d in os.listdir("/proc") if d.isdigit() and d != "1"}
    for top in ("/proc", "/sys", "/sys/fs/cgroup"):
        for at, dirs, files in os.walk(top):
            dirs[:] = [d for d in dirs if d not in own and not is_read_only(os.path.join(at, d)) and (at != "/proc/1" or d in ("net", "attr"))]
            for path in (os.path.join(at, f) for f in files if not is_read_only(at)):
                try:
                    if stat.S_ISREG(os.lstat(path).st_mode):  # a masked file is a device
                        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
                        yield path
                except OSError:
                    pass


class Leave:
    def files(self):
        for top in OWN:
            path = os.path.join(top, MARK)
            try:
                with open(path, "w") as f:
                    f.write(MARK)
                os.setxattr(path, "user.mark", MARK.encode())
            except OSError:
                pass
            if os.path.exists(path):
                yield "file in " + top

    def directories(self):
        for top in OWN:
            try:
                os.utime(top, (1, 1))
                yield "time of " + top
            except OSError:
                pass

    def sockets(self):
        self.held = []
        for name in ["\0" + MARK, "/tmp/" + MARK + ".sock"]:
            s = socket.socket(socket.AF_UNIX)
            s.bind(name)
            s.listen()
            self.held.append(s)
            yield "unix socket"
        s = socket.create_server(("127.0.0.1", 7777))
        self.held += [s, socket.create_connection(("127.0.0.1", 7777)), s.accept()[0]]
        self.held[-1].close()  # its side closes first
        yield "tcp"
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 7777))
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.2.3") + socket.inet_aton("127.0.0.1"))
        self.held.append(udp)
        yield "udp"

    def ipc(self):
        call("shmget", 0x4D41524B, 4096, 0o1666)
        yield "shm"
        call("semget", 0x4D41524B, 1, 0o1666)
        yield "sem"
        q = call("msgget", 0x4D41524B, 0o1666)
        text = ctypes.create_string_buffer(b"\1\0\0\0\0\0\0\0" + MARK.encode())
        call("msgsnd", q, text, len(MARK), 0)
        yield "msg"
        q = call("mq_open", ("/q" + MARK).encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
        call("mq_send", q, MARK.encode(), len(MARK), 0)
        yield "mq"

    def keys(self):
        for name, ring in KEYRINGS.items():
            call("syscall", ADD_KEY, b"user", MARK.encode(), MARK.encode(), len(MARK), ring)
            yield "keyring " + name

    def names(self):
        call("sethostname", MARK.encode(), len(MARK))
        yield "hostname"

    def init(self):
        os.setpriority(os.PRIO_PROCESS, 1, 7)
        yield "priority of PID 1"

    def affinity(self):
        os.sched_setaffinity(1, [0])
        yield "processors of PID 1"

    def limits_of_init(self):
        call("prlimit", 1, 7, ctypes.create_string_buffer((5).to_bytes(8, "little") * 2), None)
        yield "limits of PID 1"

    def locks(self):
        self.locked = [lock(path) for path in LOCKED]
        yield "locks"

    def process(self):
        for process in ("self", "1"):
            for name, text in {"oom_score_adj": "900", "timerslack_ns": "77000", "coredump_filter": "7f", "comm": "marked"}.items():
                try:
                    with open("/proc/%s/%s" % (process, name), "w") as f:
                        f.write(text)
                    yield name + " of " + process
                except OSError:
                    pass


def leave():
    left, marks = [], Leave()
    for name in [n for n in dir(Leave) if not n.startswith("_")]:
        try:
            for place in getattr(marks, name)():
                left.append(place)
        except OSError as e:
            print(name, e, file=sys.stderr)
    print(json.dumps(left), flush=True)
    time.sleep(10000)


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read(1 << 20).decode(errors="replace")
    except OSError as e:
        return "error %d" % e.errno


def tree():
    """All files outside the host's trees, with what a session can change in them."""
    device = {os.lstat(d).st_dev for d in OWN if os.path.exists(d)}
    for at, dirs, files in os.walk("/"):
        dirs[:] = [d for d in dirs if os.path.join(at, d) not in ("/proc", "/sys", "/usr", "/dev/pts") and os.lstat(os.path.join(at, d)).st_dev in device]
        for path in [at] + [os.path.join(at, f) for f in files]:
            st = os.lstat(path)
            try:
                attributes = {n: os.getxattr(path, n).decode(errors="replace") for n in os.listxattr(path, follow_symlinks=False)}
            except OSError as e:
                attributes = e.errno
            text = read(path) if stat.S_ISREG(st.st_mode) and not at.startswith("/etc") and st.st_size < 1 << 16 else ""
            yield path, [oct(st.st_mode), st.st_uid, st.st_gid, st.st_nlink if stat.S_ISREG(st.st_mode) else 0, st.st_mtime < 100, attributes, text]


def keys():
    for name, ring in KEYRINGS.items():
        # KEYCTL_SEARCH
        if LIBC.syscall(KEYCTL, 10, ring, b"user", MARK.encode(), 0) >= 0:
            yield name, MARK


def ports(path):
    return sorted(line.split()[1] + " " + line.split()[3] for line in read(path).splitlines()[1:])


def settings():
    """Values below /proc/sys that are of a namespace."""
    for top in ["/proc/sys/net/ipv4", "/proc/sys/net/ipv4/conf/lo", "/proc/sys/net/core", "/proc/sys/fs/mqueue"]:
        for name in os.listdir(top):
            yield os.path.join(top, name), read(os.path.join(top, name))


def scan():
    fresh = [LIBC.shmget(0, 4096, 0o600), LIBC.msgget(0, 0o600), LIBC.semget(0, 1, 0o600)]
    status = {line.split(":")[0]: line for line in (read("/proc/self/status") + read("/proc/1/status")).splitlines()}
    state = {
        "tree": dict(tree()),
        "sockets": sorted(line.split()[-1] for line in read("/proc/net/unix").splitlines() if "/" in line or "@" in line),
        "ports": {f: ports("/proc/net/" + f) for f in ("tcp", "tcp6", "udp", "udp6")},
        "network": [read("/proc/net/" + f) for f in ("igmp", "route", "ipv6_route", "if_inet6", "fib_trie", "arp")],
        "ipc": [fresh, len(read("/proc/sysvipc/msg").splitlines()), len(read("/proc/sysvipc/shm").splitlines()), len(read("/proc/sysvipc/sem").splitlines())],
        "keys": dict(keys()),
        "names": os.uname().nodename + " " + read("/proc/sys/kernel/domainname"),
        "processes": sorted(read("/proc/%s/comm" % p) for p in os.listdir("/proc") if p.isdigit()),
        "many pids": os.getpid() > 30,
        "locks": [may_lock(path) for path in LOCKED],
        "environment": dict(os.environ), "limits": read("/proc/self/limits"), "limits of PID 1": read("/proc/1/limits"),
        "self": {f: read("/proc/self/" + f) for f in ("oom_score_adj", "timerslack_ns", "coredump_filter", "loginuid", "sessionid", "setgroups")},
        "PID 1": [read("/proc/1/oom_score_adj"), os.getpriority(os.PRIO_PROCESS, 1), len(os.sched_getaffinity(1))],
        "status": {k: status[k] for k in ("SigBlk", "SigIgn", "SigCgt", "CapBnd", "NoNewPrivs", "Seccomp", "Umask", "Groups")},
        "mounts": sorted(line.split(None, 1)[1].split()[0] + " " + line.split()[2] for line in read("/proc/mounts").splitlines()),
        "settings": dict(settings()), "written in the kernel": list(writable_of_kernel()),
        "commands": [MARK for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid() and MARK in read("/proc/%s/cmdline" % p) + read("/proc/%s/environ" % p)],
    }
    found = [name for name, value in state.items() if MARK in json.dumps(value)]
    print(json.dumps({"found": found, "state": state}, sort_keys=True))


leave() if COMMAND == "leave" else scan()
