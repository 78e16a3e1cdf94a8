package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	mobyseccomp "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
)

// profiles are the built-in ones, what sandboxes are given of them, and
// Docker's, which is for three architectures.
func profiles(t *testing.T) map[string]*specs.LinuxSeccomp {
	t.Helper()
	all := map[string]*specs.LinuxSeccomp{}
	for _, name := range []string{"default", "strict", "debug"} {
		p, err := seccomp.Profile(name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = p
		if all[name+" for the agent"], err = seccomp.ForAgent(p, true); err != nil {
			t.Fatal(err)
		}
		if all[name+" for the agent on v1"], err = seccomp.ForAgent(p, false); err != nil {
			t.Fatal(err)
		}
	}
	moby, err := mobyseccomp.GetDefaultProfile(ExampleSpec(false))
	if err != nil {
		t.Fatal(err)
	}
	all["moby's"] = moby
	withoutFlags, withLog := *all["strict"], *all["strict"]
	withoutFlags.Flags = []specs.LinuxSeccompFlag{}
	withLog.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog}
	all["without flags"], all["with a log"] = &withoutFlags, &withLog
	return all
}

// loadedFilter is what the kernel says the process has loaded.
func loadedFilter(t *testing.T, pid int) []byte {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(pid); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.PtraceDetach(pid); err != nil {
			t.Error(err)
		}
	}()
	if err := unix.PtraceInterrupt(pid); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	program := make([]unix.SockFilter, unix.BPF_MAXINSNS)
	count, err := ptraceSeccompFilter(pid, program)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, i := range program[:count] {
		text.Write(binaryOf(i))
	}
	return text.Bytes()
}

// awaitExec returns when the container's init has become its command: whoever
// traces one of a program's threads loses it when another executes (ptrace(2),
// "execve(2) under ptrace").
func awaitExec(t *testing.T, pid int) {
	t.Helper()
	testhost.Eventually(t, "the container's command", func() bool {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err == nil && !bytes.Contains(line, []byte("\x00init\x00"))
	})
}

// What is compiled is what a real container has loaded, byte for byte.
func TestCompiledFilterIsTheOneThatAContainerHas(t *testing.T) {
	for name, profile := range profiles(t) {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			s := p.spec()
			s.Linux.Seccomp = profile
			c := p.create(s)
			child, err := c.Run(Process{Spec: s.Process})
			if err != nil {
				t.Fatal(err)
			}
			awaitExec(t, child.Pid())
			loaded := loadedFilter(t, child.Pid())
			if len(loaded) == 0 {
				t.Fatal("the container has no filter")
			}
			compileUntilEqual(t, profile, loaded)
			child.Abort()
		})
	}
}

// compileUntilEqual compiles once, but for profiles of several architectures:
// libcontainer puts those in the order of a map.
func compileUntilEqual(t *testing.T, profile *specs.LinuxSeccomp, loaded []byte) {
	t.Helper()
	tries := 1
	if len(profile.Architectures) > 1 {
		tries = 500
	}
	for range tries {
		f, err := CompileSeccomp(t.Context(), profile)
		if err != nil {
			t.Fatal(err)
		}
		if want := flagsOf(profile); f.Flags != want {
			t.Fatalf("flags %#x, want %#x", f.Flags, want)
		}
		if bytes.Equal(f.Program, loaded) {
			return
		}
		if len(f.Program) != len(loaded) {
			t.Fatalf("compiled %d bytes, the container has %d", len(f.Program), len(loaded))
		}
	}
	t.Error("another filter than the container's, of the same size")
}

// flagsOf are those that libcontainer passes to the kernel. There is no way to
// ask the kernel for them.
func flagsOf(profile *specs.LinuxSeccomp) uint32 {
	if profile.Flags == nil {
		return unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	}
	flags := uint32(0)
	for _, f := range profile.Flags {
		if f == specs.LinuxSeccompFlagLog {
			flags |= unix.SECCOMP_FILTER_FLAG_LOG
		}
	}
	return flags
}

func TestCompilationsLeaveNoProcess(t *testing.T) {
	whole, err := seccomp.Profile("default")
	if err != nil {
		t.Fatal(err)
	}
	// libcontainer converts it, and its child finds that libseccomp refuses the rule.
	twice := specs.LinuxSyscall{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Op: specs.OpEqualTo}}}
	again := twice
	again.Action = specs.ActKill
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	brief, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
	defer cancel()
	for name, c := range map[string]struct {
		ctx     context.Context
		profile *specs.LinuxSeccomp
		want    string
	}{
		"nothing wrong":         {t.Context(), whole, fmt.Sprint(nil)},
		"none":                  {t.Context(), nil, "there is none"},
		"empty":                 {t.Context(), &specs.LinuxSeccomp{}, "there is none"},
		"unknown action":        {t.Context(), &specs.LinuxSeccomp{DefaultAction: "x"}, "x"},
		"refused by libseccomp": {t.Context(), &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{twice, again}}, "read"},
		"cancelled":             {cancelled, whole, context.Canceled.Error()},
		"out of time":           {brief, whole, context.DeadlineExceeded.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			before := children(t)
			_, err := CompileSeccomp(c.ctx, c.profile)
			if fmt.Sprint(err) != c.want && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %s", err, c.want)
			}
			if after := children(t); after != before {
				t.Errorf("children before: %s, after: %s", before, after)
			}
		})
	}
}

// children are the processes that this one has to reap.
func children(t *testing.T) string {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) { // the thread has ended
			t.Fatal(err)
		}
		all = append(all, strings.Fields(string(text))...)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// A compiler that is killed takes its child with it.
func TestKilledCompilerLeavesNoProcess(t *testing.T) {
	said, saying, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelperHoldsATracee$")
	cmd.Env = append(os.Environ(), helperVariable+"=1", "TMPDIR="+t.TempDir()) // it cannot tidy up
	cmd.ExtraFiles = []*os.File{saying}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	saying.Close()
	var pid int
	_, err = fmt.Fscan(said, &pid)
	if err != nil {
		t.Fatal(errors.Join(err, cmd.Process.Kill(), cmd.Wait()))
	}
	pidfd, openErr := openPidFD(pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if openErr != nil {
		t.Fatal(openErr)
	}
	defer pidfd.Close()
	if ended, err := process.AwaitExit(int(pidfd.Fd()), testhost.Patience); !ended || err != nil {
		t.Error(ended, errors.Join(err, unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0)))
	}
}

const helperVariable = "SANDBOX_RUNTIME_TEST_TRACEE"

// TestHelperHoldsATracee is the process that is killed. Its child would wait for
// its profile for ever.
func TestHelperHoldsATracee(t *testing.T) {
	if os.Getenv(helperVariable) == "" {
		return
	}
	runtime.LockOSThread()
	read, _, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	endless, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(read.Fd())), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	tracee, err := startTracee(endless, null)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.NewFile(3, "said").WriteString(strconv.Itoa(tracee.pid) + "\n"); err != nil {
		t.Fatal(err)
	}
	select {}
}

func TestInputsTellFiltersApart(t *testing.T) {
	seen := map[string]string{}
	for name, p := range profiles(t) {
		text, err := SeccompInputs(p)
		if err != nil {
			t.Fatal(err)
		}
		if other, known := seen[string(text)]; known {
			t.Errorf("the same for %s and %s", name, other)
		}
		seen[string(text)] = name
		if !json.Valid(text) || !strings.Contains(string(text), LibseccompVersion()) {
			t.Errorf("%s: %s", name, text)
		}
	}
}

func BenchmarkCompileSeccomp(b *testing.B) {
	p, err := seccomp.Profile("default")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := CompileSeccomp(b.Context(), p); err != nil {
			b.Fatal(err)
		}
	}
}
