package cgroups

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// runProgram is what a test binary does as a program under test. Each waits
// for a line on stdin, during which the test moves it into its group.
func runProgram(name string, args []string) int {
	switch name {
	case "janitor":
		return janitor(args[0])
	case "execs on": // without a line: nobody waits for it
		return execOn()
	}
	if err := joinLeaf(); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return 1
	}
	programs := map[string]func(*bufio.Reader, []string) error{
		"echo": echo, "memory": memory, "spin": spin, "work": work, "read": readDirect, "fill": fill,
		"forks": forks, "bomb": bomb, "in-namespace": inNamespace, "execs": execs, "kill-own-group": killOwnGroup,
		"daemon": daemon, "starter": startAsked, "threads": threads,
	}
	if err := programs[name](in, args); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	return 0
}

// joinLeaf brings this process into the leaf whose tasks files it has, as what
// was forked for a command does, and begins anew: what execs is one thread.
func joinLeaf() error {
	n, _ := strconv.Atoi(os.Getenv(joinVariable))
	if n == 0 {
		return nil
	}
	runtime.LockOSThread()
	for fd := 3; fd < 3+n; fd++ {
		if _, err := unix.Write(fd, []byte("0")); err != nil {
			return fmt.Errorf("join through descriptor %d: %w", fd, err)
		}
		unix.CloseOnExec(fd)
	}
	os.Unsetenv(joinVariable)
	return os.NewSyscallError("execve", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// janitor waits for the end of the tests, however they end, and removes the
// groups that are left.
func janitor(prefix string) int {
	io.Copy(io.Discard, os.Stdin)
	if err := scrubAll(leakedGroups(prefix)); err != nil {
		fmt.Fprintln(os.Stderr, "janitor:", err)
		return 1
	}
	return 0
}

// echo sends back each line until there are no more.
func echo(in *bufio.Reader, _ []string) error {
	for {
		line, err := in.ReadString('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Print(line)
	}
}

// execs executes itself over and over, each time with several threads.
func execs(*bufio.Reader, []string) error {
	fmt.Println("begun")
	os.Setenv(helperVariable, "execs on")
	return os.NewSyscallError("execve", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

func execOn() int {
	for range 4 {
		go func() {
			runtime.LockOSThread()
			for {
				unix.Getppid()
			}
		}()
	}
	time.Sleep(time.Millisecond)
	syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	return 1
}

// threads makes threads that end at once, a few at a time.
func threads(*bufio.Reader, []string) error {
	running := make(chan struct{}, 4)
	for {
		running <- struct{}{}
		go func() {
			runtime.LockOSThread() // and so the thread ends with it
			<-running
		}()
	}
}

// memory takes MiB of memory, says so, and echoes.
func memory(in *bufio.Reader, args []string) error {
	mib, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	data, err := unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	for i := 0; i < len(data); i += 4096 {
		data[i] = 1
	}
	fmt.Println("taken")
	return echo(in, nil)
}

// spin uses a processor for as long, by the wall clock, as it is told.
func spin(_ *bufio.Reader, args []string) error {
	d, err := time.ParseDuration(args[0])
	for start := time.Now(); err == nil && time.Since(start) < d; {
	}
	return err
}

// work uses a processor for as long as it is told by the processor's own clock,
// however long that takes.
func work(_ *bufio.Reader, args []string) error {
	d, err := time.ParseDuration(args[0])
	var used unix.Timespec
	for err == nil && time.Duration(used.Nano()) < d {
		err = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used)
	}
	return err
}

// readDirect reads a file past the page cache and says how long it took.
func readDirect(_ *bufio.Reader, args []string) error {
	fd, err := unix.Open(args[0], unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	buffer, err := unix.Mmap(-1, 0, 128<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	for start := time.Now(); ; {
		n, err := unix.Read(fd, buffer)
		if err != nil {
			return err
		}
		if n == 0 {
			fmt.Println(time.Since(start))
			return nil
		}
	}
}

// fill writes MiB into a file, which takes as much page cache.
func fill(_ *bufio.Reader, args []string) error {
	mib, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	for range mib {
		if _, err := f.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
	}
	return f.Sync()
}

// forks makes children until the kernel refuses, says how many, and echoes.
// With an argument it waits for a line once it runs.
func forks(in *bufio.Reader, args []string) error {
	if len(args) > 0 {
		fmt.Println("ready")
		if _, err := in.ReadString('\n'); err != nil {
			return err
		}
	}
	for n := 0; ; n++ {
		switch pid, errno := rawFork(); {
		case errno != 0:
			fmt.Println(n, errno)
			return echo(in, nil)
		case pid == 0:
			rawPause()
		}
	}
}

// bomb forks without end, and so does each child.
func bomb(*bufio.Reader, []string) error {
	fmt.Println("lit")
	rawBomb()
	return nil
}

//go:norace
func rawBomb() {
	for {
		rawFork()
	}
}

// rawFork forks without the runtime's knowledge: the child may only make raw
// system calls.
//
//go:norace
func rawFork() (pid uintptr, errno syscall.Errno) {
	pid, _, errno = unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	return pid, errno
}

//go:norace
func rawPause() {
	for {
		unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// daemon says its pid once it is nobody's child: whoever started it ends.
func daemon(*bufio.Reader, []string) error {
	for range 2 {
		switch pid, errno := rawFork(); {
		case errno != 0:
			return errno
		case pid != 0:
			rawExit()
		}
	}
	// The runtime of a forked process cannot be relied on: its line is written
	// by hand.
	pid, _, _ := unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
	line := strconv.AppendInt(nil, int64(pid), 10)
	unix.RawSyscall(unix.SYS_WRITE, 1, uintptr(unsafe.Pointer(&append(line, '\n')[0])), uintptr(len(line)+1))
	rawPause()
	return nil
}

//go:norace
func rawExit() {
	unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
}

// verdict is what inNamespace prints.
type verdict struct {
	Limits      Limits
	Parent      string // error of EnsureParent
	NotWritable bool   // whether that is ErrNotWritable
	Delete      string // error of Delete
}

// inNamespace changes the mounts of its own namespace, or its own identity,
// and says what the package makes of it.
func inNamespace(_ *bufio.Reader, args []string) error {
	change, arg, group := args[0], args[1], args[2]
	switch change {
	case "umount":
		if err := unix.Unmount(arg, unix.MNT_DETACH); err != nil {
			return err
		}
	case "read-only":
		entries, err := os.ReadDir(mountRoot)
		if err != nil {
			return err
		}
		unix.Mount("", mountRoot, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
		for _, e := range entries {
			unix.Mount("", mountRoot+"/"+e.Name(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
		}
	case "uid":
		uid, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		if err := syscall.Setresuid(uid, uid, uid); err != nil {
			return err
		}
	case "tmpfs":
		if err := unix.Mount("tmpfs", arg, "tmpfs", 0, ""); err != nil {
			return err
		}
		if err := os.Mkdir(arg+"/precious", 0o755); err != nil {
			return err
		}
	}
	h, err := Probe()
	if err != nil {
		return err
	}
	v := verdict{Limits: h.Limits}
	if change == "tmpfs" {
		g, err := h.Open(group)
		if err != nil {
			return err
		}
		if err := g.Delete(context.Background()); err != nil {
			v.Delete = err.Error()
		}
		if _, err := os.Stat(arg + "/precious"); err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(v)
	}
	if _, err := h.EnsureParent(group, 0); err != nil {
		v.Parent, v.NotWritable = err.Error(), isNotWritable(err)
	}
	return json.NewEncoder(os.Stdout).Encode(v)
}

// killOwnGroup says what Kill answers to a process that is in the group.
func killOwnGroup(_ *bufio.Reader, args []string) error {
	h, err := Probe()
	if err != nil {
		return err
	}
	g, err := h.Open(args[0])
	if err != nil {
		return err
	}
	fmt.Println(g.Kill(context.Background()))
	return nil
}
