package sandboxtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// fakeWithout are the abilities that a Fake lacks.
var fakeWithout = []Ability{Refusals, HostWorkspaces, Terminals, Limits, Statistics, Events, OtherWorkspaces, Connections}

func TestFakeKeepsThePromisesOfAProvider(t *testing.T) {
	Suite(t, newShellFake(t), SuiteOptions{Without: fakeWithout})
}

// newShellFake is a Fake whose commands run on this host, in the files of the fake.
func newShellFake(t testing.TB) *Fake {
	var signals sync.Map // of commands that a signal has ended
	f := &Fake{
		Run: func(ctx context.Context, p *Program) int {
			status := runOnHost(ctx, p)
			if status.Signaled() {
				signals.Store(p, status.Signal())
				return 0
			}
			return status.ExitStatus()
		},
		Result: func(p *Program, r *sandbox.Result) {
			if sig, ok := signals.LoadAndDelete(p); ok && r.Status == sandbox.StatusExited {
				sig := sig.(syscall.Signal)
				r.Status, r.Signal, r.ExitCode = sandbox.StatusSignaled, unix.SignalName(sig), 128+int(sig)
				r.Reason = "the command was killed by " + r.Signal
			}
		},
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// killAfter is more than the grace of the claims with commands that ignore SIGTERM. A Fake tells nothing at the end
// of the grace.
const killAfter = time.Second

// runOnHost runs a command in a process group of its own.
func runOnHost(ctx context.Context, p *Program) syscall.WaitStatus {
	root, err := p.Root()
	if err != nil {
		return 127 << 8
	}
	defer root.Close()
	cmd := exec.Command(p.Command.Args[0], p.Command.Args[1:]...)
	cmd.Dir = root.Name() + cmp.Or(p.Command.Cwd, "/workspace")
	cmd.Env = append(os.Environ(), "SUITE_ROOT="+root.Name())
	for _, env := range []map[string]string{p.Sandbox.Config.Env, p.Command.Env} {
		for name, value := range env {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p.Stdin, p.Stdout, p.Stderr, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var files []*os.File
	if own := ownFile(p.Stdin, &files); own != nil {
		cmd.Stdin = own
	}
	for _, stream := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		if own := ownFile(*stream, &files); own != nil {
			*stream = own
		}
	}
	err = cmd.Start()
	descriptor.Close(files...)
	if err != nil {
		return 127 << 8
	}
	var mu sync.Mutex
	isReaped := false // mu guards it. Until then no other group has the number.
	kill := func(sig syscall.Signal) {
		mu.Lock()
		defer mu.Unlock()
		if !isReaped {
			_ = unix.Kill(-cmd.Process.Pid, sig) // the group may have ended
		}
	}
	stop := context.AfterFunc(ctx, func() {
		sig := unix.SIGTERM
		if by, ok := errors.AsType[signalError](context.Cause(ctx)); ok {
			sig = by.by
		}
		kill(sig)
		time.AfterFunc(killAfter, func() { kill(unix.SIGKILL) })
	})
	_ = unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	kill(unix.SIGKILL) // the rest of the group
	stop()
	mu.Lock()
	isReaped = true
	mu.Unlock()
	_ = cmd.Wait() // ProcessState tells the end
	return cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// ownFile is a duplicate of a file of the fake, which the fake may close meanwhile. The duplicate blocks, as programs
// expect. Nil: the stream is no file.
func ownFile(stream any, all *[]*os.File) *os.File {
	file, ok := stream.(*os.File)
	if !ok {
		return nil
	}
	fd, err := descriptor.Duplicate(file)
	if err != nil {
		return nil // the command has to end, and its streams with it
	}
	_ = unix.SetNonblock(fd, false) // an error of the command would show a failure
	own := os.NewFile(uintptr(fd), file.Name())
	*all = append(*all, own)
	return own
}

// A recorder is the testing.TB of a claim that has to fail.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed []string
}

func (r *recorder) Error(args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, fmt.Sprint(args...))
}
func (r *recorder) Errorf(format string, args ...any) { r.Error(fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

// Each claim fails with a provider that breaks the claim.
func TestSuiteFindsBrokenProviders(t *testing.T) {
	broken := brokenProviders()
	for _, c := range claims() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			breakIt, ok := broken[c.name]
			if !ok {
				t.Fatal("there is no broken provider for this claim")
			}
			r := &recorder{TB: t}
			without := slices.DeleteFunc(slices.Clone(fakeWithout), func(a Ability) bool { return a == c.needs })
			if c.name == lackClaim {
				without = []Ability{Pauses}
			}
			w := newWorld(r, breakIt(newShellFake(t)), SuiteOptions{Without: without})
			w.patience = 2 * time.Second
			checked := make(chan struct{})
			go func() { // Fatal ends the goroutine
				defer close(checked)
				c.check(w)
			}()
			<-checked
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.failed) == 0 {
				t.Error("the claim holds")
			}
			t.Log(strings.Join(r.failed, "\n"))
		})
	}
	for name := range broken {
		if !slices.ContainsFunc(claims(), func(c claim) bool { return c.name == name }) {
			t.Errorf("there is no claim %q", name)
		}
	}
}
