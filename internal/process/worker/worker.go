// Package worker starts this program again as a worker: a process without any privilege that works
// on open files. It does not know the work.
package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// variable in the environment makes this program a worker. The first argument is the kind.
const variable = "_SANDBOX_RUNTIME_WORKER"

// gateFile is the first file of the new process. The files of the caller follow.
const gateFile = 3

// ID is the user and the group of workers. No other process has this id: it is the one before the
// first id of sandboxes (internal/launcher/idrange). A process of "nobody" could stop a worker of "nobody".
// The program's file may be root's alone, so the process changes its ids when it runs.
const ID = 0x70000000 - 1

// Start starts a worker of a kind, in the network namespace of the calling thread. The worker runs
// until its work is done or another process ends it. Start calls note with the new process. The
// worker does nothing before note returns. If the caller is killed before that, the worker ends.
func Start(kind string, args []string, files []*os.File, note func(process.ID) error) error {
	cmd, opener, err := startWorker(context.Background(), kind, args, files, nil)
	if err != nil {
		return err
	}
	defer opener.Close()
	id, err := process.Of(cmd.Process.Pid)
	go func() { _ = cmd.Wait() }() // reaps it, if the caller lives longer
	if err == nil {
		err = note(id)
	}
	if err == nil {
		_, err = opener.Write([]byte{1})
	}
	if err != nil {
		return fmt.Errorf("start the %s: %w", kind, err)
	}
	return nil
}

// startWorker starts a worker that waits for a byte from the opener. The worker ends if the opener is closed
// before that. The end of ctx kills the worker.
func startWorker(ctx context.Context, kind string, args []string, files []*os.File, stderr io.Writer) (*exec.Cmd, *os.File, error) {
	gate, opener, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer gate.Close()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{kind}, args...)...)
	cmd.Env = []string{variable + "=1"}
	cmd.Dir = "/"
	cmd.Stderr = stderr
	cmd.ExtraFiles = append([]*os.File{gate}, files...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start the %s: %w", kind, err), opener.Close())
	}
	return cmd, opener, nil
}

// TakeOver does not return in a worker of this kind: it drops all privileges and does the work, with
// the arguments of [Start]. Each program that starts a worker calls TakeOver before it does anything
// else.
func TakeOver(kind string, work func(args []string) error) {
	TakeOverPrivileged(kind, withoutPrivileges(work))
}

// TakeOverPrivileged is [TakeOver] for a process that keeps the privileges of the thread that has
// called [Start].
func TakeOverPrivileged(kind string, work func(args []string) error) {
	if !isWorker(kind) {
		return
	}
	gate := os.NewFile(gateFile, "gate")
	_, err := io.ReadFull(gate, make([]byte, 1))
	gate.Close()
	if err == nil {
		err = work(os.Args[2:])
	}
	end(err)
}

func isWorker(kind string) bool {
	return len(os.Args) >= 2 && os.Args[1] == kind && os.Getenv(variable) != ""
}

func end(err error) {
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// TakeOverConfined is [TakeOver] for a worker that restricts itself before. Landlock restricts only the calling
// thread, and all threads of a program that this thread executes. So restrict restricts its thread and calls execute,
// which executes this program again with the files and arguments of the worker. execute returns only an error. The
// process has its privileges until then: the program's file may be root's alone.
func TakeOverConfined(kind string, restrict func(args []string, execute func() error) error, work func(args []string) error) {
	confinedKind := kind + "-confined"
	TakeOverPrivileged(kind, func(args []string) error {
		runtime.LockOSThread()
		return restrict(args, func() error {
			again := append([]string{os.Args[0], confinedKind}, args...)
			return os.NewSyscallError("execve", syscall.Exec("/proc/self/exe", again, []string{variable + "=1"}))
		})
	})
	if isWorker(confinedKind) {
		end(withoutPrivileges(work)(os.Args[2:]))
	}
}

func withoutPrivileges(work func(args []string) error) func(args []string) error {
	return func(args []string) error {
		if err := Drop(); err != nil {
			return err
		}
		return work(args)
	}
}

// File is a file of [Start] in a worker, by its place in the list. The caller closes the file.
func File(place int) *os.File { return os.NewFile(uintptr(gateFile+1+place), "file") }

// Drop drops all privileges of a worker of [TakeOverPrivileged], for ever, except those that single threads keep:
// see [KeepCapabilities].
func Drop() error {
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setresgid(ID, ID, ID); err != nil {
		return err
	}
	if err := syscall.Setresuid(ID, ID, ID); err != nil {
		return err
	}
	return setNoNewPrivs()
}

// setNoNewPrivs sets no_new_privs for all threads. prctl(2) sets it for one thread only. A seccomp
// filter with TSYNC copies it to all threads (kernel/seccomp.c:seccomp_sync_threads()). The filter
// allows all system calls.
func setNoNewPrivs() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	return filterAllThreads([]unix.SockFilter{allow}, unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW)
}
