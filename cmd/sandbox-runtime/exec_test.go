package main

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func itoa(n int) string { return strconv.Itoa(n) }

// running starts a container that pauses.
func (h *host) running() string {
	h.t.Helper()
	h.must("run", "--detach", "--bundle", h.bundle(nil, "pause"), h.id())
	return h.id()
}

func TestExecEndsWithTheProcesssStatus(t *testing.T) {
	h := newHost(t)
	id := h.running()
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"exit", "0"}, 0}, {[]string{"exit", "7"}, 7}, {[]string{"die", "9"}, 137}, {[]string{"die", "15"}, 143},
	} {
		if r := h.run(append([]string{"exec", id, "probe"}, c.args...)...); r.code != c.code || r.stderr != "" {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
}

func TestExecThatCannotStartIs255(t *testing.T) {
	h := newHost(t)
	id := h.running()
	for _, c := range []struct{ command, words string }{
		{"nosuch", `exec failed: unable to start container process: exec: "nosuch": executable file not found in $PATH`},
		{"/no/such", `exec: "/no/such": stat /no/such: no such file or directory`},
		{"/proc/version", `exec: "/proc/version": permission denied`},
	} {
		h.refuse(255, []string{c.words}, "exec", id, c.command)
	}
	h.refuse(255, []string{"exec args cannot be empty"}, "exec", id)
	h.refuse(255, []string{"bad uid"}, "exec", "-u", "root", id, "probe")
	h.refuse(255, []string{"parse ", "process.json"}, "exec", "-p", h.file("process.json", "{"), id)
	h.refuse(255, []string{"Cwd must be an absolute path"}, "exec", "--cwd", "x", id, "probe")
	h.refuse(255, []string{"cgroup"}, "exec", "--cgroup", "../..", id, "probe")
}

func (h *host) file(name, content string) string {
	path := filepath.Join(h.dir, name)
	h.write(path, content)
	return path
}

func TestExecLeavesTheCommandsFlagsAlone(t *testing.T) {
	h := newHost(t)
	id := h.running()
	r := h.must("exec", "--cwd", "/bin", id, "probe", "args", "--user", "5", "-e", "--", "-t", "", "a b")
	if want := "[--user][5][-e][--][-t][][a b]\n"; r.stdout != want {
		t.Errorf("%q, want %q", r.stdout, want)
	}
}

func TestExecFlags(t *testing.T) {
	h := newHost(t)
	id := h.running()
	r := h.must("exec", "-u", "12:34", "-g", "56", "--additional-gids", "78", "-w", "/bin", id, "probe", "ids")
	if want := "uid 12 gid 34 groups 56 78 cwd /bin nnp 1\n"; r.stdout != want {
		t.Errorf("%q, want %q", r.stdout, want)
	}
	r = h.must("exec", "--no-new-privs=false", id, "probe", "ids")
	if !strings.HasSuffix(r.stdout, "nnp 0\n") {
		t.Errorf("%q", r.stdout)
	}
	r = h.must("exec", "-e", "A=b,c", "--env", "D= e ", id, "probe", "env")
	for _, want := range []string{"[A=b,c]\n", "[D= e ]\n", "[TERM=xterm]\n"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q lacks %q", r.stdout, want)
		}
	}
	if strings.Contains(r.stdout, asProgram) {
		t.Error("the caller's environment is inside")
	}
}

func TestExecProcessFile(t *testing.T) {
	h := newHost(t)
	id := h.running()
	p := specs.Process{
		Args: []string{"probe", "ids"}, Cwd: "/bin", Env: []string{"PATH=/bin"},
		User: specs.User{UID: 5, GID: 6, AdditionalGids: []uint32{7}},
	}
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	pidFile := filepath.Join(h.dir, "pid")
	r := h.must("exec", "--process", h.file("process.json", string(data)), "--pid-file", pidFile, id)
	if want := "uid 5 gid 6 groups 7 cwd /bin nnp 0\n"; r.stdout != want {
		t.Errorf("%q, want %q", r.stdout, want)
	}
	if pid, err := strconv.Atoi(h.read(pidFile)); err != nil || pid < 2 {
		t.Errorf("pid file: %d, %v", pid, err)
	}
}

func TestExecDetached(t *testing.T) {
	h := newHost(t)
	id := h.running()
	pidFile := filepath.Join(h.dir, "pid")
	h.must("exec", "--detach", "--pid-file", pidFile, id, "probe", "pause")
	pid, err := strconv.Atoi(h.read(pidFile))
	if err != nil || !alive(pid) {
		t.Errorf("pid %d: %v", pid, err)
	}
}

func TestExecCapabilities(t *testing.T) {
	h := newHost(t)
	id := h.running()
	h.must("exec", "--cap", "CAP_NET_RAW", id, "probe", "exit", "0")
}
