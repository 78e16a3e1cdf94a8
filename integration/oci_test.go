package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// What Docker's shim calls, in its order: create, start, state, kill, delete,
// and delete --force for an id that is gone.
func TestLifeCycleAsDockerCallsIt(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	b := newBundle(t, []string{"sleep", "1000"}, func(s *specs.Spec) {
		s.Annotations = map[string]string{"org.example": "kept"}
	})

	pid := r.create(b, "c1")
	want := containerState{
		Version: specs.Version, ID: "c1", PID: pid, Status: "created", Bundle: b.dir,
		Rootfs: b.spec.Root.Path, Annotations: b.spec.Annotations,
	}
	if got := r.state("c1"); !reflect.DeepEqual(got, want) {
		t.Errorf("state = %+v, want %+v", got, want)
	}
	if command := content(t, "/proc/"+strconv.Itoa(pid)+"/cmdline"); strings.Contains(command, "sleep") {
		t.Error("the program runs before start")
	}

	r.run("start", "c1")
	r.waitUntil("c1", "running")
	eventually(t, "the program runs", func() bool {
		return content(t, "/proc/"+strconv.Itoa(pid)+"/cmdline") == "sleep\x001000\x00"
	})
	r.run("kill", "c1", "9")
	r.waitUntil("c1", "stopped")
	if got := r.state("c1").PID; got != 0 {
		t.Errorf("pid of a stopped container = %d", got)
	}
	r.run("kill", "--all", "c1", "9") // the shim does so for what may be left
	r.run("delete", "c1")
	r.run("delete", "--force", "c1")
	if got := run(t, r.command("state", "c1")); got.code == 0 {
		t.Errorf("a deleted container has a state: %s", got.stdout)
	}
	for _, e := range r.logged() {
		if e["level"] == "error" && !strings.Contains(e["msg"], "does not exist") {
			t.Errorf("logged: %v", e)
		}
	}
}

func TestKillTakesNumbersAndNames(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	b := newBundle(t, []string{"sh", "-c", "trap 'exit 3' TERM; trap 'exit 4' HUP; trap 'exit 5' USR1; echo ready; while :; do sleep 0.01; done"})
	for signal, status := range map[string]int{"15": 3, "TERM": 3, "SIGTERM": 3, "term": 3, "": 3, "1": 4, "HUP": 4, "usr1": 5} {
		t.Run("signal "+signal, func(t *testing.T) {
			p := start(t, r.command("run", "--bundle", b.dir, "k"))
			p.prints("ready\n")
			args := []string{"kill", "k"}
			if signal != "" {
				args = append(args, signal)
			}
			r.run(args...)
			if got := p.wait(); got.code != status {
				t.Errorf("status %d, want %d", got.code, status)
			}
		})
	}
}

func TestRunReturnsTheProgramsStatus(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	for script, status := range map[string]int{"exit 0": 0, "exit 7": 7, "exit 255": 255, "sh -c 'kill -9 $$'; exit $?": 137} {
		b := newBundle(t, []string{"sh", "-c", script})
		if got := run(t, r.command("run", "--bundle", b.dir, "s")); got.code != status {
			t.Errorf("%s: status %d, want %d; stderr %s", script, got.code, status, got.stderr)
		}
	}
	b := newBundle(t, []string{"sh", "-c", "echo ready; exec sleep 1000"})
	p := start(t, r.command("run", "--bundle", b.dir, "s"))
	p.prints("ready\n")
	r.run("kill", "s", "KILL")
	if got := p.wait(); got.code != 137 {
		t.Errorf("killed: status %d, want 137", got.code)
	}
}

func TestRunPassesStandardStreams(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	b := newBundle(t, []string{"sh", "-c", "tr a-z A-Z; echo problem >&2"})
	cmd := r.command("run", "--bundle", b.dir, "io")
	cmd.Stdin = strings.NewReader("from outside\n")
	if got := run(t, cmd); got != (result{0, "FROM OUTSIDE\n", "problem\n"}) {
		t.Errorf("got %+v", got)
	}
}

func TestRunDetachedWithPIDFile(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	b := newBundle(t, []string{"sleep", "1000"})
	pidFile := filepath.Join(t.TempDir(), "pid")
	r.run("run", "--detach", "--bundle", b.dir, "--pid-file", pidFile, "d")
	s := r.state("d")
	if s.Status != "running" || strconv.Itoa(s.PID) != content(t, pidFile) {
		t.Errorf("state %+v, pid file %s", s, content(t, pidFile))
	}
	r.run("delete", "--force", "d")
}

func TestTerminalGoesToTheConsoleSocket(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	b := newBundle(t, []string{"sh", "-c", "tty; stty size; read line; echo \"got $line\""}, func(s *specs.Spec) {
		s.Process.Terminal = true
		s.Process.ConsoleSize = &specs.Box{Height: 33, Width: 99}
	})
	socket := listenForConsole(t)
	r.create(b, "tty", "--console-socket", socket.path)
	console := socket.receive(t)
	r.run("start", "tty")
	console.shows(t, "/dev/pts/0")
	console.shows(t, "33 99")
	console.typeIn(t, "hello\n")
	console.shows(t, "got hello")
	r.waitUntil("tty", "stopped")
	r.run("delete", "tty")
}

func TestRunInTheForegroundUsesTheCallersTerminal(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	b := newBundle(t, []string{"sh", "-c", "test -t 0 && test -t 1 && test -t 2 && read line && echo \"got $line\"; exit 6"},
		func(s *specs.Spec) { s.Process.Terminal = true })
	term, p := onTerminal(t, r.command("run", "--bundle", b.dir, "tty"))
	term.typeIn(t, "hello\n")
	term.shows(t, "got hello")
	if got := p.wait(); got.code != 6 {
		t.Errorf("status %d, want 6", got.code)
	}
}

func TestOnlyPreservedDescriptorsReachTheProgram(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	readEnd, writeEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writeEnd.WriteString("preserved\n"); err != nil {
		t.Fatal(err)
	}
	writeEnd.Close()
	defer readEnd.Close()
	// ls itself opens the directory: one more than what it inherited.
	for flags, want := range map[string]string{"--preserve-fds=1": "0 1 2 3 4 preserved\n", "": "0 1 2 3 "} {
		b := newBundle(t, []string{"sh", "-c", "echo -n $(ls /proc/self/fd) ''; cat <&3"})
		args := []string{"run", "--bundle", b.dir}
		if flags != "" {
			args = append(args, flags)
		}
		cmd := r.command(append(args, "fds")...)
		cmd.ExtraFiles = []*os.File{readEnd}
		if got := run(t, cmd); got.stdout != want {
			t.Errorf("%q: stdout %q, want %q; stderr %s", flags, got.stdout, want, got.stderr)
		}
	}
}

// Docker passes libnetwork-setkey as a prestart hook and cleans up in others.
func TestHooksGetTheContainersState(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	out := t.TempDir()
	hook := func(name string) []specs.Hook {
		return []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "cat > " + filepath.Join(out, name)}}}
	}
	b := newBundle(t, []string{"true"}, func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{Prestart: hook("prestart"), CreateRuntime: hook("createRuntime"), Poststart: hook("poststart"), Poststop: hook("poststop")} //nolint:staticcheck // Docker uses the deprecated one
	})
	pid := r.create(b, "hooked")
	r.run("start", "hooked")
	r.waitUntil("hooked", "stopped")
	r.run("delete", "hooked")
	// runc 1.5.2 still says created in poststart.
	for name, status := range map[string]string{"prestart": "creating", "createRuntime": "creating", "poststart": "created", "poststop": "stopped"} {
		var s specs.State
		decode(t, content(t, filepath.Join(out, name)), &s)
		if s.ID != "hooked" || string(s.Status) != status || s.Bundle != b.dir || (name != "poststop" && s.Pid != pid) {
			t.Errorf("%s got %+v", name, s)
		}
	}
}

func TestNetworkNamespaceIsJoinedByPath(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	holder := exec.Command("sleep", "1000")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	start(t, holder)
	path := "/proc/" + strconv.Itoa(holder.Process.Pid) + "/ns/net"
	want, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	b := newBundle(t, []string{"readlink", "/proc/self/ns/net"}, func(s *specs.Spec) {
		i := slices.IndexFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace })
		s.Linux.Namespaces[i].Path = path
	})
	if got := r.run("run", "--bundle", b.dir, "net"); got.stdout != want+"\n" {
		t.Errorf("in %q, want %s", got.stdout, want)
	}
}

func TestMemoryLimitOfTheBundleKills(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	b := newBundle(t, []string{"sh", "-c", "dd if=/dev/zero of=/dev/null bs=200M count=1; exit $?"}, func(s *specs.Spec) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(32 << 20)), Swap: new(int64(32 << 20))}
	})
	if got := run(t, r.command("run", "--bundle", b.dir, "oom")); got.code != 137 {
		t.Errorf("status %d, want 137; stderr %s", got.code, got.stderr)
	}
}

func TestStateAndListHaveRuncsKeys(t *testing.T) {
	leavesNothing(t)
	b := newBundle(t, []string{"sleep", "1000"}, func(s *specs.Spec) { s.Annotations = map[string]string{"a": "b"} })
	keys := func(r *ociRuntime) (state, list []string, quiet, header string) {
		r.create(b, "keys-1")
		r.create(b, "keys-2")
		var s map[string]any
		decode(t, r.run("state", "keys-1").stdout, &s)
		var l []map[string]any
		decode(t, r.run("list", "--format", "json").stdout, &l)
		if len(l) != 2 {
			t.Fatalf("list has %d entries", len(l))
		}
		header, _, _ = strings.Cut(r.run("list").stdout, "\n")
		quiet = r.run("list", "-q").stdout
		r.run("delete", "--force", "keys-1") // the next runtime uses the same cgroups
		r.run("delete", "--force", "keys-2")
		return slices.Sorted(maps.Keys(s)), slices.Sorted(maps.Keys(l[0])), quiet, strings.Join(strings.Fields(header), " ")
	}
	gotState, gotList, gotQuiet, gotHeader := keys(ours(t))
	wantState, wantList, wantQuiet, wantHeader := keys(reference(t))
	if !slices.Equal(gotState, wantState) {
		t.Errorf("state: keys %v, runc's %v", gotState, wantState)
	}
	if !slices.Equal(gotList, wantList) {
		t.Errorf("list: keys %v, runc's %v", gotList, wantList)
	}
	if gotQuiet != wantQuiet {
		t.Errorf("list -q: %q, runc %q", gotQuiet, wantQuiet)
	}
	if gotHeader != wantHeader {
		t.Errorf("list: header %q, runc's %q", gotHeader, wantHeader)
	}
}

func TestSpecIsRuncs(t *testing.T) {
	leavesNothing(t)
	for _, flags := range [][]string{nil, {"--rootless"}} {
		write := func(r *ociRuntime) (spec map[string]any) {
			dir := t.TempDir()
			r.run(append([]string{"spec", "--bundle", dir}, flags...)...)
			decode(t, content(t, filepath.Join(dir, "config.json")), &spec)
			delete(spec, "hostname") // the program's name
			return spec
		}
		got, want := write(ours(t)), write(reference(t))
		if !reflect.DeepEqual(got, want) {
			g, _ := json.MarshalIndent(got, "", " ")
			t.Errorf("spec %v differs from runc's: %s", flags, g)
		}
	}
}

// dropVersion removes the program's own annotations from its features.
func dropVersion(features map[string]any) (found bool) {
	annotations, _ := features["annotations"].(map[string]any)
	for _, program := range []string{"io.github.sandbox-runtime.", "org.opencontainers.runc."} {
		found = found || annotations[program+"version"] != nil
		delete(annotations, program+"version")
		delete(annotations, program+"commit")
	}
	return found
}

func TestFeaturesNameWhatRuncsDo(t *testing.T) {
	leavesNothing(t)
	features := func(r *ociRuntime) (f map[string]any) {
		decode(t, r.run("features").stdout, &f)
		return f
	}
	got, want := features(ours(t)), features(reference(t))
	for _, f := range []map[string]any{got, want} {
		if !dropVersion(f) {
			t.Errorf("no version in %v", f["annotations"])
		}
	}
	if !reflect.DeepEqual(got, want) {
		for key := range want {
			if !reflect.DeepEqual(got[key], want[key]) {
				t.Errorf("%s = %v, runc's %v", key, got[key], want[key])
			}
		}
		t.Errorf("keys %q, runc's %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	if hooks := strings.Fields(fmt.Sprint(got["hooks"])); len(hooks) != len(hookKinds) {
		t.Errorf("the hooks %q, tested are %q", hooks, hookKinds)
	}
}

func TestVersionNamesTheSpecItFollows(t *testing.T) {
	leavesNothing(t)
	got := run(t, exec.Command(binary(t), "--version"))
	if got.code != 0 || !strings.Contains(got.stdout, "\nspec: 1.3.0\n") || !strings.Contains(got.stdout, " version ") {
		t.Errorf("got %+v", got)
	}
}
