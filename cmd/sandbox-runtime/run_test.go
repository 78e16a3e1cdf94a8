package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestRunEndsWithTheProcesssStatus(t *testing.T) {
	for _, status := range []string{"0", "7", "126", "255"} {
		h := newHost(t)
		r := h.run("run", "-b", h.bundle(nil, "exit", status), h.id())
		if want := status; want != itoa(r.code) || r.stdout+r.stderr != "" {
			t.Errorf("exit %s: %+v", status, r)
		}
		h.nothingLeft()
	}
}

func TestRunCopiesStdio(t *testing.T) {
	h := newHost(t)
	cmd := h.command("run", "-b", h.bundle(nil, "cat"), h.id())
	input := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB: more than pipes hold
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(stdout.Bytes(), input) || stderr.String() != "to stderr\n" {
		t.Errorf("%d bytes out of %d, stderr %q", stdout.Len(), len(input), stderr.String())
	}
	h.nothingLeft()
}

// spawn starts the program, returns once its container has said "ready", and
// gives what comes after.
func spawn(t *testing.T, cmd *exec.Cmd) *bufio.Reader {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return r
}

func TestRunForwardsSignals(t *testing.T) {
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1} {
		h := newHost(t)
		cmd := h.command("run", "-b", h.bundle(nil, "trap"), h.id())
		out := spawn(t, cmd)
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(out)
		_ = cmd.Wait()
		if want := "got " + itoa(int(signal)) + "\n"; string(rest) != want {
			t.Errorf("%v: container said %q, want %q", signal, rest, want)
		}
		if got, want := cmd.ProcessState.ExitCode(), 40+int(signal)%10; got != want {
			t.Errorf("%v: status %d, want %d", signal, got, want)
		}
		h.nothingLeft()
	}
}

func TestRunOfAKilledContainerIs137(t *testing.T) {
	h := newHost(t)
	cmd := h.command("run", "-b", h.bundle(nil, "trap"), h.id())
	spawn(t, cmd)
	h.must("kill", h.id(), "KILL")
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 137 {
		t.Errorf("status %d", got)
	}
	h.nothingLeft()
}

// The orphan holds the container's stdout: only its end lets run return.
func TestRunEndsWithItsInitWithoutAPidNamespace(t *testing.T) {
	h := newHost(t)
	cmd := h.command("run", "-b", h.bundle(withoutPidNamespace, "orphan"), h.id())
	done := time.AfterFunc(testhost.Patience, func() { _ = cmd.Process.Kill() })
	out, err := cmd.Output()
	if !done.Stop() || err != nil || string(out) != "parent done\n" {
		t.Errorf("%q, %v", out, err)
	}
	h.nothingLeft()
}

func TestRunKeepLeavesAStoppedContainer(t *testing.T) {
	h := newHost(t)
	if r := h.run("run", "--keep", "-b", h.bundle(nil, "exit", "3"), h.id()); r.code != 3 {
		t.Errorf("%+v", r)
	}
	if s := h.state(h.id()); s.Status != container.Stopped {
		t.Errorf("%s", s.Status)
	}
	h.must("delete", h.id())
	h.nothingLeft()
}

func TestDetachedContainerHasTheCallersStdio(t *testing.T) {
	h := newHost(t)
	in, out := filepath.Join(h.dir, "in"), filepath.Join(h.dir, "stdout")
	h.write(in, "from the caller\n")
	cmd := h.command("run", "--detach", "-b", h.bundle(nil, "cat"), h.id())
	var err error
	if cmd.Stdin, err = os.Open(in); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = f
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	h.awaitStatus(h.id(), container.Stopped)
	if got := h.read(out); got != "from the caller\n" {
		t.Errorf("%q", got)
	}
}

func TestDefaultSpecRuns(t *testing.T) {
	h := newHost(t)
	dir := filepath.Dir(filepath.Join(h.bundle(nil), frontend.ConfigName))
	if err := os.Remove(filepath.Join(dir, frontend.ConfigName)); err != nil {
		t.Fatal(err)
	}
	h.must("spec", "--bundle", dir)
	config := h.read(filepath.Join(dir, frontend.ConfigName))
	h.refuse(1, []string{"File " + filepath.Join(dir, frontend.ConfigName) + " exists. Remove it first"}, "spec", "-b", dir)

	config = strings.Replace(config, `"sh"`, `"probe", "ids"`, 1)
	config = strings.Replace(config, `"terminal": true`, `"terminal": false`, 1)
	h.write(filepath.Join(dir, frontend.ConfigName), config)
	r := h.run("run", "-b", dir, h.id())
	if want := "uid 0 gid 0 groups cwd / nnp 1\n"; r.stdout != want || r.code != 0 {
		t.Errorf("%+v, want %q", r, want)
	}
}

func TestRootlessSpecMapsTheCaller(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	h.must("spec", "--rootless", "-b", dir)
	spec, err := frontend.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	if m := spec.Linux.UIDMappings; len(m) != 1 || m[0] != (specs.LinuxIDMapping{HostID: 0, ContainerID: 0, Size: 1}) {
		t.Errorf("uid mappings %v", m)
	}
}

func TestRelativeBundleAndPidFile(t *testing.T) {
	h := newHost(t)
	bundle := h.bundle(nil, "pause")
	cmd := h.command("create", "--bundle", filepath.Base(bundle), "--pid-file", "pid", h.id())
	cmd.Dir = filepath.Dir(bundle)
	if r := h.finish(cmd); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if got := h.read(filepath.Join(h.dir, "pid")); got != itoa(h.state(h.id()).Pid) {
		t.Errorf("pid file %q", got)
	}
}
