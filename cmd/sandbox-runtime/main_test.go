package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/doctor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// asProgram makes the test binary the program under test: what runs is main
// itself, in a process of its own.
const asProgram = "SANDBOX_RUNTIME_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == doctor.ProbeCommand {
		probeMain()
	}
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	code := m.Run()
	if probeDir != "" {
		os.RemoveAll(probeDir)
	}
	os.Exit(code)
}

// probeMain is main in a sandbox that doctor examines, where no environment
// reaches: asProgram does not, nor GORACE. So it ends without os.Exit, which
// sleeps for a second under the race detector.
func probeMain() {
	code, message := commandline.ExitCode(rootCommand(commandline.NewReporter(os.Stderr), allCommands()).Run(context.Background(), os.Args))
	if message != nil {
		fmt.Fprintln(os.Stderr, message)
	}
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(code), 0, 0)
}

var (
	probeOnce sync.Once
	probeDir  string
	probeErr  error
)

// probePath compiles testdata/probe.c, once.
func probePath(t *testing.T) string {
	t.Helper()
	probeOnce.Do(func() {
		if probeDir, probeErr = os.MkdirTemp("", "probe"); probeErr != nil {
			return
		}
		out, err := exec.Command("cc", "-O1", "-static", "-o", filepath.Join(probeDir, "probe"), "testdata/probe.c").CombinedOutput()
		if err != nil {
			probeErr = fmt.Errorf("%w: %s", err, out)
		}
	})
	if probeErr != nil {
		t.Fatalf("compile probe: %v", probeErr)
	}
	return filepath.Join(probeDir, "probe")
}

// host is a state root of its own; what is left in it at the end of the test is
// deleted.
type host struct {
	t    *testing.T
	dir  string // short, for unix sockets
	root string
}

func newHost(t *testing.T) *host {
	t.Helper()
	testhost.NeedRoot(t, "containers without a user namespace")
	dir, err := os.MkdirTemp("", "srt")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, dir: dir, root: filepath.Join(dir, "state")}
	t.Cleanup(func() {
		ids, _ := container.IDs(h.root)
		for _, id := range ids {
			if r := h.run("delete", "--force", id); r.code != 0 {
				t.Errorf("clean up %s: %s", id, r.stderr)
			}
		}
		for _, group := range h.cgroups() { // of a test that failed
			os.Remove(group)
		}
		os.RemoveAll(dir)
	})
	return h
}

// id is one no other test run has.
func (h *host) id() string {
	return "t" + strings.TrimPrefix(filepath.Base(h.dir), "srt")
}

// bundle makes one whose process is the probe with args.
func (h *host) bundle(edit func(*specs.Spec), args ...string) string {
	h.t.Helper()
	dir, err := os.MkdirTemp(h.dir, "b")
	if err != nil {
		h.t.Fatal(err)
	}
	rootfs := filepath.Join(dir, "rootfs")
	if err := os.MkdirAll(filepath.Join(rootfs, "bin"), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Link(probePath(h.t), filepath.Join(rootfs, "bin", "probe")); err != nil {
		h.t.Fatal(err)
	}
	spec := container.ExampleSpec(false)
	spec.Process.Args = append([]string{"probe"}, args...)
	spec.Process.Terminal = false
	spec.Linux.CgroupsPath = "/" + h.id()
	if edit != nil {
		edit(spec)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		h.t.Fatal(err)
	}
	h.write(filepath.Join(dir, frontend.ConfigName), string(data))
	return dir
}

func (h *host) write(path, content string) {
	h.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

type result struct {
	stdout, stderr string
	code           int
}

// command is the program with the host's --root, ready to be started.
func (h *host) command(args ...string) *exec.Cmd {
	h.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	cmd := exec.Command(exe, append([]string{"--root", h.root, "--data", h.root + ".data"}, args...)...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

func (h *host) run(args ...string) result {
	h.t.Helper()
	return h.finish(h.command(args...))
}

// finish runs cmd. Its output goes to files: a detached container may keep it.
func (h *host) finish(cmd *exec.Cmd) result {
	h.t.Helper()
	var out [2]*os.File
	for i, to := range []any{cmd.Stdout, cmd.Stderr} {
		f, err := os.CreateTemp(h.dir, "out")
		if err != nil {
			h.t.Fatal(err)
		}
		defer f.Close()
		out[i] = f
		if to != nil {
			h.t.Fatal("finish takes the output")
		}
	}
	cmd.Stdout, cmd.Stderr = out[0], out[1]
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	hung := time.AfterFunc(testhost.Patience, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !hung.Stop() {
		h.t.Errorf("%q hung", cmd.Args)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatal(err)
	}
	return result{h.read(out[0].Name()), h.read(out[1].Name()), cmd.ProcessState.ExitCode()}
}

func (h *host) read(path string) string {
	h.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(data)
}

// must runs the program and fails the test unless it succeeds in silence.
func (h *host) must(args ...string) result {
	h.t.Helper()
	r := h.run(args...)
	if r.code != 0 || r.stderr != "" {
		h.t.Fatalf("%q: status %d, stderr %q", args, r.code, r.stderr)
	}
	return r
}

// refuse runs the program and fails the test unless it ends with the status
// and one line on stderr that has all the words.
func (h *host) refuse(code int, words []string, args ...string) {
	h.t.Helper()
	r := h.run(args...)
	if r.code != code {
		h.t.Errorf("%q: status %d, want %d (stderr %q)", args, r.code, code, r.stderr)
	}
	if r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
		h.t.Errorf("%q: want one line on stderr and nothing else, got stdout %q, stderr %q", args, r.stdout, r.stderr)
	}
	for _, w := range words {
		// The text log quotes messages.
		if !strings.Contains(strings.ReplaceAll(r.stderr, `\"`, `"`), w) {
			h.t.Errorf("%q: stderr %q lacks %q", args, r.stderr, w)
		}
	}
}

func (h *host) state(id string) container.State {
	h.t.Helper()
	var s container.State
	if err := json.Unmarshal([]byte(h.must("state", id).stdout), &s); err != nil {
		h.t.Fatal(err)
	}
	return s
}

// awaitStatus polls: a container's end has no event here.
func (h *host) awaitStatus(id string, want container.Status) {
	h.t.Helper()
	testhost.Eventually(h.t, fmt.Sprintf("%s is %s", id, want), func() bool { return h.state(id).Status == want })
}

// awaitCommand returns when the container's init has executed the probe, which
// comes some time after start has returned.
func (h *host) awaitCommand() {
	h.t.Helper()
	comm := "/proc/" + strconv.Itoa(h.state(h.id()).Pid) + "/comm"
	testhost.Eventually(h.t, "init is the probe", func() bool { return h.read(comm) == "probe\n" })
}

// nothingLeft fails the test if the container has anything in the kernel or on
// disk.
func (h *host) nothingLeft() {
	h.t.Helper()
	if ids, _ := container.IDs(h.root); len(ids) > 0 {
		h.t.Errorf("state left: %v", ids)
	}
	if found := h.cgroups(); len(found) > 0 {
		h.t.Errorf("cgroups left: %v", found)
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/root")
	for _, p := range procs {
		if to, err := os.Readlink(p); err == nil && strings.HasPrefix(to, h.dir) {
			h.t.Errorf("process left: %s is in %s", filepath.Dir(p), to)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(h.dir)) {
		h.t.Errorf("mounts left below %s (%v)", h.dir, err)
	}
}

// cgroups are those of the host's container, in any hierarchy.
func (h *host) cgroups() []string {
	v2, _ := filepath.Glob("/sys/fs/cgroup/" + h.id())
	v1, _ := filepath.Glob("/sys/fs/cgroup/*/" + h.id())
	return append(v2, v1...)
}

func alive(pid int) bool { return unix.Kill(pid, 0) == nil }
