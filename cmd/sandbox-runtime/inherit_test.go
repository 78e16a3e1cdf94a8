package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
)

func TestProcessHasOnlyItsStdio(t *testing.T) {
	h := newHost(t)
	leak, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	cmd := h.command("run", "-b", h.bundle(nil, "fds"), h.id())
	cmd.ExtraFiles = []*os.File{leak, leak} // not meant for the container
	r := h.finish(cmd)
	if lines := strings.Split(strings.TrimSpace(r.stdout), "\n"); len(lines) != 3 {
		t.Errorf("run: %q", lines)
	}
	id := h.running()
	cmd = h.command("exec", id, "probe", "fds")
	cmd.ExtraFiles = []*os.File{leak, leak}
	r = h.finish(cmd)
	if lines := strings.Split(strings.TrimSpace(r.stdout), "\n"); len(lines) != 3 {
		t.Errorf("exec: %q", lines)
	}
}

// CVE-2024-21626: a working directory behind a descriptor of the host's.
func TestCwdBehindADescriptorIsRefused(t *testing.T) {
	h := newHost(t)
	id := h.running()
	for _, fd := range []string{"3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "16", "32", "64"} {
		cwd := "/proc/self/fd/" + fd
		if r := h.run("exec", "--cwd", cwd, id, "probe", "ids"); r.code != 255 {
			t.Errorf("exec in %s: %+v", cwd, r)
		}
		other := newHost(t)
		bundle := other.bundle(func(s *specs.Spec) { s.Process.Cwd = cwd }, "ids")
		if r := other.run("run", "-b", bundle, other.id()); r.code == 0 {
			t.Errorf("run in %s: %+v", cwd, r)
		}
	}
}

func TestPreservedDescriptors(t *testing.T) {
	h := newHost(t)
	f, err := os.Create(filepath.Join(h.dir, "extra"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := h.command("run", "--preserve-fds", "2", "-b", h.bundle(nil, "fds"), h.id())
	cmd.ExtraFiles = []*os.File{f, f, f}
	r := h.finish(cmd)
	if strings.Count(r.stdout, f.Name()) != 2 || !strings.Contains(r.stdout, "\n4 "+f.Name()) || strings.Contains(r.stdout, "\n5 ") {
		t.Errorf("%+v", r)
	}
}

func TestListenFDs(t *testing.T) {
	h := newHost(t)
	l, err := net.Listen("unix", filepath.Join(h.dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	bundle := h.bundle(nil, "env")
	// LISTEN_PID names the program itself: a shell can tell.
	inner := h.command("run", "-b", bundle, h.id())
	cmd := h.command()
	cmd.Path = "/bin/sh"
	cmd.Args = append([]string{"sh", "-c", `export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"`, "sh"}, inner.Args...)
	cmd.ExtraFiles = []*os.File{f}
	r := h.finish(cmd)
	if !strings.Contains(r.stdout, "[LISTEN_FDS=1]") || !strings.Contains(r.stdout, "[LISTEN_PID=1]") {
		t.Errorf("%+v", r)
	}
	cmd.Env = append(cmd.Env, "LISTEN_PID=1", "LISTEN_FDS=1")
	other := h.command("run", "-b", bundle, h.id())
	other.Env, other.ExtraFiles = cmd.Env, cmd.ExtraFiles
	if r := h.finish(other); strings.Contains(r.stdout, "LISTEN") {
		t.Errorf("taken, though meant for another process: %q", r.stdout)
	}
}

func TestPidfdSocket(t *testing.T) {
	h := newHost(t)
	path := filepath.Join(h.dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h.must("create", "--pidfd-socket", path, "-b", h.bundle(nil, "pause"), h.id())
	fd := acceptFD(t, l)
	info := h.read("/proc/self/fdinfo/" + itoa(fd))
	if want := "\nPid:\t" + itoa(h.state(h.id()).Pid) + "\n"; !strings.Contains(info, want) {
		t.Errorf("fdinfo %q lacks %q", info, want)
	}
}

// acceptFD takes the descriptor that the next connection brings.
func acceptFD(t *testing.T, l net.Listener) int {
	t.Helper()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	socket, err := conn.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	fd, err := frontend.ReceiveFD(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}
