package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestCreateStartKillDeleteIsALife(t *testing.T) {
	h := newHost(t)
	pidFile := filepath.Join(h.dir, "pid")
	h.must("create", "--bundle", h.bundle(nil, "pause"), "--pid-file", pidFile, h.id())

	s := h.state(h.id())
	if s.Status != container.Created || s.ID != h.id() || s.Version != specs.Version || s.Created.IsZero() {
		t.Errorf("after create: %+v", s)
	}
	if got := h.read(pidFile); got != strconv.Itoa(s.Pid) {
		t.Errorf("pid file %q, state says %d", got, s.Pid)
	}
	h.must("start", h.id())
	if s := h.state(h.id()); s.Status != container.Running || !alive(s.Pid) {
		t.Errorf("after start: %+v", s)
	}
	h.refuse(1, []string{"cannot start an already running container"}, "start", h.id())
	h.refuse(1, []string{"cannot delete container " + h.id() + " that is not stopped: running"}, "delete", h.id())

	h.must("kill", h.id(), "KILL")
	h.awaitStatus(h.id(), container.Stopped)
	if s := h.state(h.id()); s.Pid != 0 {
		t.Errorf("stopped, but pid %d", s.Pid)
	}
	h.refuse(1, []string{"cannot start a container that has stopped"}, "start", h.id())
	h.refuse(1, []string{"container not running"}, "kill", h.id(), "9")
	h.must("kill", "--all", h.id(), "9")
	h.refuse(255, []string{"exec failed: cannot exec in a stopped container"}, "exec", h.id(), "probe")
	h.must("delete", h.id())
	h.nothingLeft()
}

// A start that is killed after it has released the init leaves the fifo. The container runs.
func TestKilledStartLeavesARunningContainer(t *testing.T) {
	h := newHost(t)
	h.must("create", "--bundle", h.bundle(nil, "pause"), h.id())
	fifo := filepath.Join(h.root, h.id(), "exec.fifo")
	if s := h.state(h.id()); s.Status != container.Created {
		t.Errorf("after create: %+v", s)
	}
	if got := h.read(fifo); got != "0" { // releases the init
		t.Errorf("the init has written %q", got)
	}
	h.awaitStatus(h.id(), container.Running)
	if _, err := os.Lstat(fifo); err != nil {
		t.Fatal(err)
	}
	h.refuse(1, []string{"cannot start an already running container"}, "start", h.id())
	h.refuse(1, []string{"cannot delete container " + h.id() + " that is not stopped: running"}, "delete", h.id())
	h.must("pause", h.id())
	h.must("resume", h.id())
	h.awaitStatus(h.id(), container.Running)
	h.must("kill", h.id(), "KILL")
	h.awaitStatus(h.id(), container.Stopped)
	h.must("delete", h.id())
	h.nothingLeft()
}

func TestStateIsTheBundles(t *testing.T) {
	h := newHost(t)
	bundle := h.bundle(func(s *specs.Spec) {
		s.Annotations = map[string]string{"org.example.key": "value=with=signs"}
	}, "pause")
	h.must("create", "-bundle", bundle, h.id()) // one dash, as some callers write it
	s := h.state(h.id())
	if s.Bundle != bundle || s.Rootfs != filepath.Join(bundle, "rootfs") {
		t.Errorf("bundle %s, rootfs %s", s.Bundle, s.Rootfs)
	}
	if len(s.Annotations) != 1 || s.Annotations["org.example.key"] != "value=with=signs" {
		t.Errorf("annotations %v", s.Annotations)
	}
}

func TestDeleteTakesACreatedContainer(t *testing.T) {
	h := newHost(t)
	h.must("create", "-b", h.bundle(nil, "pause"), h.id())
	pid := h.state(h.id()).Pid
	h.must("delete", h.id())
	// It is a zombie of the test's subreaper at most, until that has reaped it.
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err == nil && !strings.Contains(string(data), ") Z ") {
		t.Errorf("init %d lives: %s", pid, data)
	}
	h.nothingLeft()
}

func TestDeleteForceEndsARunningContainer(t *testing.T) {
	h := newHost(t)
	h.must("run", "-d", "-b", h.bundle(nil, "pause"), h.id())
	h.must("delete", "--force", h.id())
	h.nothingLeft()
}

func TestDeleteForceEndsAllWithoutAPidNamespace(t *testing.T) {
	h := newHost(t)
	h.must("run", "-d", "-b", h.bundle(withoutPidNamespace, "orphan"), h.id())
	h.awaitStatus(h.id(), container.Stopped) // and the orphan lives on
	h.must("delete", "--force", h.id())
	h.nothingLeft()
}

// The kernel never says that it is frozen, for which libcontainer waits.
func TestAFreezeThatDoesNotEndHoldsNothingUp(t *testing.T) {
	h := newHost(t)
	for _, end := range [][]string{{"delete", "--force", h.id()}, {"kill", h.id(), "KILL"}, {"state", h.id()}} {
		out := filepath.Join(h.dir, "out-"+end[0])
		cmd := h.command("run", "-d", "-b", h.bundle(nil, "unfreezable"), h.id())
		h.detachTo(cmd, out)
		h.awaitContent(out, "ready\n")
		h.freeze()
		h.must(end...)
		h.must("delete", "--force", h.id())
		h.nothingLeft()
	}
}

// detachTo runs cmd to its end; what it leaves running writes into file.
func (h *host) detachTo(cmd *exec.Cmd, file string) {
	h.t.Helper()
	f, err := os.Create(file)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Run(); err != nil {
		h.t.Fatalf("%q: %v: %s", cmd.Args, err, h.read(file))
	}
}

func (h *host) awaitContent(file, want string) {
	h.t.Helper()
	testhost.Eventually(h.t, file+" is "+want, func() bool { return h.read(file) == want })
}

// freeze asks the kernel to freeze the container, and does not wait.
func (h *host) freeze() {
	h.t.Helper()
	file, on, off := "/sys/fs/cgroup/freezer/"+h.id()+"/freezer.state", "FROZEN", "THAWED"
	if _, err := os.Stat(file); err != nil {
		file, on, off = "/sys/fs/cgroup/"+h.id()+"/cgroup.freeze", "1", "0"
	}
	if err := os.WriteFile(file, []byte(on), 0); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = os.WriteFile(file, []byte(off), 0) }) // there only if the test failed
}

func withoutPidNamespace(s *specs.Spec) {
	var kept []specs.LinuxNamespace
	for _, ns := range s.Linux.Namespaces {
		if ns.Type != specs.PIDNamespace {
			kept = append(kept, ns)
		}
	}
	s.Linux.Namespaces = kept
}

func TestDeleteForceOfUnknownIsSilent(t *testing.T) {
	h := newHost(t)
	h.must("delete", "--force", "unknown")
	h.refuse(1, []string{"unknown does not exist"}, "delete", "unknown")
}

func TestDeleteRemovesWhatAKilledCreateLeft(t *testing.T) {
	h := newHost(t)
	dir := filepath.Join(h.root, "half")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	h.write(filepath.Join(dir, "exec.fifo"), "")
	h.must("delete", "--force", "half")
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("stat %s: %v", dir, err)
	}
}

// At the time of this hook there are a process, cgroups and a directory, but no
// state that could be loaded.
func TestDeleteForceClearsAwayAfterAKilledCreate(t *testing.T) {
	h := newHost(t)
	bundle := h.bundle(func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "kill -9 $PPID"}}}}
	}, "pause")
	if r := h.run("create", "-b", bundle, h.id()); r.code != -1 {
		t.Fatalf("not killed: %+v", r)
	}
	h.refuse(1, []string{h.id() + " does not exist"}, "state", h.id())
	h.must("delete", "--force", h.id())
	h.nothingLeft()
}

func TestIDsStayBelowTheRoot(t *testing.T) {
	h := newHost(t)
	canary := filepath.Join(h.dir, "canary")
	h.write(canary, "")
	bundle := h.bundle(nil, "exit", "0")
	for _, id := range []string{"..", ".", "a/b", "../" + filepath.Base(h.dir), "/etc", "@sandboxes", "a b", "ä", "a\n"} {
		for _, args := range [][]string{
			{"state", id}, {"delete", "--force", id}, {"delete", id}, {"kill", id},
			{"create", "--bundle", bundle, id}, {"run", "--bundle", bundle, id},
		} {
			h.refuse(1, []string{"invalid container ID format"}, args...)
		}
		h.refuse(255, []string{"invalid container ID format"}, "exec", id, "probe")
	}
	for _, command := range []string{"state", "start", "kill", "delete", "create", "run"} {
		h.refuse(1, []string{"container id cannot be empty"}, command, "")
	}
	if _, err := os.Stat(canary); err != nil {
		t.Error(err)
	}
}

func TestAnIDIsUsedOnce(t *testing.T) {
	h := newHost(t)
	bundle := h.bundle(nil, "pause")
	h.must("run", "-d", "-b", bundle, h.id())
	h.refuse(1, []string{"create failed: container with given ID already exists"}, "create", "-b", bundle, h.id())
	h.refuse(1, []string{"run failed: container with given ID already exists"}, "run", "-b", bundle, h.id())
	if s := h.state(h.id()); s.Status != container.Running {
		t.Errorf("the first is %s", s.Status)
	}
}

func TestSignalsHaveNumbersAndNames(t *testing.T) {
	h := newHost(t)
	for _, signal := range []string{"", "15", "TERM", "sigterm", "SIGUSR1", "1"} {
		h.must("run", "-d", "-b", h.bundle(nil, "pause"), h.id())
		h.awaitCommand() // what sets it up is still killed by them
		args := []string{"kill", h.id()}
		if signal != "" {
			args = append(args, signal)
		}
		h.must(args...) // PID 1 ignores them all
		h.must("kill", h.id(), "0")
		for _, wrong := range []string{"SIGNONE", "65", "-9", "9x"} {
			h.refuse(1, []string{"unknown signal", wrong}, "kill", h.id(), wrong)
		}
		h.must("delete", "-f", h.id())
	}
}

func TestUnknownContainerIsSaidToBe(t *testing.T) {
	h := newHost(t)
	for _, command := range []string{"state", "start", "kill", "delete"} {
		h.refuse(1, []string{"unknown does not exist"}, command, "unknown")
	}
	h.refuse(255, []string{"unknown does not exist"}, "exec", "unknown", "probe")
}

func TestListShowsContainers(t *testing.T) {
	h := newHost(t)
	h.must("run", "-d", "-b", h.bundle(nil, "pause"), h.id())
	if err := os.MkdirAll(filepath.Join(h.root, "@sandboxes"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := h.state(h.id())

	if got := h.must("list", "-q").stdout; got != h.id()+"\n" {
		t.Errorf("list -q: %q", got)
	}
	lines := strings.Split(h.must("list").stdout, "\n")
	if !strings.HasPrefix(lines[0], "ID ") || len(lines) != 3 {
		t.Fatalf("list: %q", lines)
	}
	f := strings.Fields(lines[1])
	if len(f) != 6 || f[0] != h.id() || f[1] != strconv.Itoa(s.Pid) || f[2] != "running" || f[3] != s.Bundle || f[5] != "root" {
		t.Errorf("list: %q", f)
	}
	if got := h.must("list", "--format", "json").stdout; !strings.Contains(got, `"owner":"root"`) || !strings.Contains(got, `"id":"`+h.id()+`"`) {
		t.Errorf("list json: %s", got)
	}
	h.refuse(1, []string{"invalid format option"}, "list", "-f", "xml")
}

// runc prints null for an empty list. runc has no --json: there scripts get a list to loop over.
func TestAnEmptyListIsAList(t *testing.T) {
	h := newHost(t)
	if err := os.MkdirAll(h.root, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ flag, want string }{{"--json", "[]\n"}, {"--format=json", "null\n"}} {
		if got := h.must("list", tt.flag).stdout; got != tt.want {
			t.Errorf("list %s: %q, want %q", tt.flag, got, tt.want)
		}
	}
}

// The rest of a failed removal is listed, also if nothing but an empty directory is left.
func TestListShowsRests(t *testing.T) {
	h := newHost(t)
	if err := os.MkdirAll(filepath.Join(h.root, "@sandboxes", "gone"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := h.must("list", "-q").stdout; got != "gone\n" {
		t.Errorf("list -q: %q", got)
	}
	if got := strings.Fields(h.must("list").stdout); len(got) != 11 || got[8] != "stopped" {
		t.Errorf("list: %q", got)
	}
}

func TestListOfAMissingRoot(t *testing.T) {
	h := newHost(t)
	h.refuse(1, []string{h.root, "no such file"}, "list") // --root was given: a slip of the caller's
	h.refuse(1, []string{"--root argument should not be set to /"}, "--root", "/", "list")
}
