package integration

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// descriptorDirectories are working directories that lead out of a container
// if a descriptor of the host has leaked, among them one by a link of the image.
func descriptorDirectories(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	for n := 3; n <= 64; n++ {
		all = append(all, "/proc/self/fd/"+strconv.Itoa(n))
	}
	for _, n := range []int{3, 7, 8, 9} {
		link := fmt.Sprintf("/link%d", n)
		if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", n), root+link); err != nil {
			t.Fatal(err)
		}
		all = append(all, link, fmt.Sprintf("/proc/self/fd/%d/../../../..", n), fmt.Sprintf("/proc/thread-self/fd/%d", n))
	}
	return all
}

// CVE-2024-21626: the working directory is a descriptor that the runtime has
// on the host.
func TestAttackByAWorkingDirectory(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	path, _ := canary(t)
	root := newAttackRoot(t)
	dirs := descriptorDirectories(t, root)
	idle := newAttack(t, []string{"sleep", "1000"}, withRoot(root), readOnlyRoot)
	r.create(idle, "idle")
	r.run("start", "idle")
	climb := []string{"attack", "climb", path}
	for _, dir := range dirs {
		b := newAttack(t, climb, withRoot(root), readOnlyRoot, func(s *specs.Spec) { s.Process.Cwd = dir })
		process := processFile(t, idle, climb, func(p *specs.Process) { p.Cwd = dir })
		for how, got := range map[string]result{
			"run":            r.runBundle(b),
			"exec --cwd":     run(t, r.command(append([]string{"exec", "--cwd", dir, "idle"}, climb...)...)),
			"exec --process": run(t, r.command("exec", "--process", process, "idle")),
		} {
			if got.code == 0 || got.stdout != "" {
				t.Errorf("%s in %s: %+v", how, dir, got)
			}
		}
	}
}

// The attack itself works: with a directory of the host handed in, it reads
// what lies there.
func TestAttackByADescriptorThatWasHandedIn(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	path, text := canary(t)
	host, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	b := newAttack(t, []string{"attack", "climb", path})
	for flag, want := range map[string]bool{"--preserve-fds=1": true, "--preserve-fds=0": false} {
		cmd := r.command("run", flag, "--bundle", b.dir, "attack")
		cmd.ExtraFiles = []*os.File{host}
		if got := run(t, cmd); strings.Contains(got.stdout, text) != want {
			t.Errorf("%s: %+v", flag, got)
		}
	}
	b = newAttack(t, []string{"attack", "climb", path}, func(s *specs.Spec) { s.Process.Cwd = "/proc/self/fd/3" })
	cmd := r.command("run", "--preserve-fds=1", "--bundle", b.dir, "attack")
	cmd.ExtraFiles = []*os.File{host}
	if got := run(t, cmd); got.code == 0 || got.stdout != "" {
		t.Errorf("a directory of the host became the working directory: %+v", got)
	}
}

func TestAttackByAWorkingDirectoryOfDo(t *testing.T) {
	s := newSandboxes(t)
	path, _ := canary(t)
	root := newAttackRoot(t)
	if got := s.do("--rootfs", root, "--cwd", "/proc/self", "--", "attack", "climb", path); got.code != 0 || got.stdout != "" {
		t.Errorf("in a directory of its own: %+v", got)
	}
	for _, dir := range descriptorDirectories(t, root) {
		if n := strings.TrimPrefix(dir, "/proc/self/fd/"); len(n) == 2 && n[1] != '0' {
			continue // each tenth of what the OCI commands were given
		}
		got := s.do("--rootfs", root, "--cwd", dir, "--", "attack", "climb", path)
		if got.code == 0 || got.stdout != "" {
			t.Errorf("in %s: %+v", dir, got)
		}
	}
}

// Whoever starts a process has all kinds of descriptors open; the process has
// three.
func TestAttackFindsNoDescriptors(t *testing.T) {
	s := newSandboxes(t)
	r := ours(t)
	host, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	given := func(cmd *exec.Cmd) result {
		cmd.ExtraFiles = []*os.File{host, host, host, host, host}
		return run(t, cmd)
	}
	const want = "0\n1\n2\n"
	b := newAttack(t, []string{"attack", "descriptors"})
	if got := given(r.command("run", "--bundle", b.dir, "run")); got.stdout != want {
		t.Errorf("run: %+v", got)
	}
	b = newAttack(t, []string{"sh", "-c", "attack descriptors; exec sleep 1000"})
	create := r.command("create", "--bundle", b.dir, "created")
	create.ExtraFiles = []*os.File{host, host, host}
	out := start(t, create)
	if got := out.wait(); got.code != 0 {
		t.Fatalf("create: %+v", got)
	}
	r.run("start", "created")
	eventually(t, "a created container's program has three descriptors", func() bool { return out.stdout() == want })
	for _, flags := range [][]string{nil, {"--user", "1000"}, {"--process", processFile(t, b, []string{"attack", "descriptors"}, nil)}} {
		args := append(append([]string{"exec"}, flags...), "created")
		if len(flags) == 0 || flags[0] == "--user" {
			args = append(args, "attack", "descriptors")
		}
		if got := given(r.command(args...)); got.stdout != want {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := given(s.command("do", "--rootfs", sharedAttackRoot(t), "--", "attack", "descriptors")); got.stdout != want {
		t.Errorf("do: %+v", got)
	}
}

// CVE-2016-9962: a process in the container traces each process that comes in,
// before that has executed its own program, and looks at what it has open.
func TestAttackOnAnExecsSetUp(t *testing.T) {
	leavesNothing(t)
	r := ours(t)
	path, text := canary(t)
	for name, strength := range map[string]func(*specs.Spec){"Docker's capabilities": func(*specs.Spec) {}, "CAP_SYS_PTRACE": withCapabilities("CAP_SYS_PTRACE")} {
		t.Run(name, func(t *testing.T) {
			b := newAttack(t, []string{"attack", "trace-all", path}, strength)
			attacker := start(t, r.command("run", "--bundle", b.dir, "tracer"))
			eventually(t, "the attack runs", func() bool { return strings.HasPrefix(attacker.stdout(), "ready\n") })
			attempts(2*time.Second, func() { run(t, r.command("exec", "tracer", "true")) })
			for line := range strings.Lines(strings.TrimPrefix(attacker.stdout(), "ready\n")) {
				// Once it has executed a program of the container it is the container's.
				if name == "CAP_SYS_PTRACE" && strings.HasPrefix(line, "traced ") || line == "traced /bin/busybox\n" {
					continue
				}
				t.Errorf("the attack says %q", line)
				break
			}
			if name == "CAP_SYS_PTRACE" {
				seesAWeakExec(t, r, attacker, text)
			}
			r.run("kill", "tracer", "KILL")
			attacker.wait()
		})
	}
}

// seesAWeakExec has a process with a directory of the host open come into the
// attacker's pid namespace: the attack must find it.
func seesAWeakExec(t *testing.T, r *ociRuntime, attacker *testProcess, text string) {
	t.Helper()
	host, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	_, leave := enter(t, r, "tracer", host)
	eventually(t, "a weak runtime's descriptor is found", func() bool {
		return strings.Contains(attacker.stdout(), "reached "+text+" from a descriptor")
	})
	leave()
}

// The same in a sandbox, where the profile for debuggers lets it trace.
func TestAttackOnWhatComesIntoASandbox(t *testing.T) {
	s := newSandboxes(t)
	path, _ := canary(t)
	for _, user := range []string{"0", "1000"} {
		inLongerTime(t, 1500*time.Millisecond, func(timeout string) bool {
			got := s.json("--rootfs", sharedAttackRoot(t), "--user", user, "--seccomp", "debug", "--timeout", timeout, "--", "attack", "trace-all", path)
			if got.Status != "timed_out" || !strings.HasPrefix("ready\n", got.Stdout) {
				t.Errorf("--user %s: %+v", user, got)
			}
			return got.Stdout != ""
		})
	}
}
