package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func paused(r *ociRuntime, b *bundle) {
	r.started(b)
	r.run("pause", "c")
}

var pauseRefusals = []refusal{
	{name: "pause of nothing", args: []string{"pause"}, says: "requires exactly 1 argument"},
	{name: "pause of two", args: []string{"pause", "a", "b"}, says: "requires exactly 1 argument"},
	{name: "pause of an unknown id", args: []string{"pause", "nobody"}, says: "container does not exist"},
	{name: "pause of a stopped one", before: stopped, args: []string{"pause", "c"}, says: "container not running"},
	{name: "pause twice", before: paused, args: []string{"pause", "c"}, says: "container not running"},
	{name: "resume of nothing", args: []string{"resume"}, says: "requires exactly 1 argument"},
	{name: "resume of an unknown id", args: []string{"resume", "nobody"}, says: "container does not exist"},
	{name: "resume of a running one", before: started, args: []string{"resume", "c"}, says: "container not paused"},
	{name: "resume of a stopped one", before: stopped, args: []string{"resume", "c"}, says: "container not paused"},
	{name: "exec in a paused one", before: paused, args: []string{"exec", "c", "true"}, says: "cannot exec in a paused container"},
	{name: "start of a paused one", before: paused, args: []string{"start", "c"}, says: "cannot start a container in the paused state"},
	{name: "delete of a paused one", before: paused, args: []string{"delete", "c"}, says: "cannot delete container c that is not stopped: paused"},
}

// counting is a bundle whose program counts in the file count on the host.
func counting(t *testing.T) (b *bundle, count func() int) {
	t.Helper()
	dir := t.TempDir()
	b = newBundle(t, []string{"sh", "-c", "trap 'exit 5' TERM; i=0; while :; do i=$((i+1)); echo $i > /tmp/new; mv /tmp/new /tmp/count; sleep 0.01; done"},
		func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/tmp", Source: dir, Options: []string{"rbind", "rw"}})
		})
	return b, func() int {
		data, _ := os.ReadFile(filepath.Join(dir, "count"))
		n, _ := strconv.Atoi(strings.TrimSpace(string(data)))
		return n
	}
}

// A container that runc has made can be paused after a change of the engine's runtime.
func TestPauseOfAContainerThatRuncHasMade(t *testing.T) {
	leavesNothing(t)
	runc, r := reference(t), ours(t)
	r.root = runc.root
	b, count := counting(t)
	runc.started(b)
	eventually(t, "it counts", func() bool { return count() > 0 })
	if got := r.run("pause", "c"); got != (result{}) || runc.state("c").Status != "paused" {
		t.Errorf("pause: %+v; runc's state: %+v", got, runc.state("c"))
	}
	if got := r.run("resume", "c"); got != (result{}) || runc.state("c").Status != "running" {
		t.Errorf("resume: %+v; runc's state: %+v", got, runc.state("c"))
	}
}

func TestPauseStopsTheProgramUntilResume(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b, count := counting(t)
		r.started(b)
		eventually(t, "it counts", func() bool { return count() > 0 })
		if got := r.run("pause", "c"); got != (result{}) {
			t.Errorf("pause: %+v", got)
		}
		if got := r.state("c"); got.Status != "paused" || got.PID == 0 {
			t.Errorf("state %+v", got)
		}
		still := count()
		time.Sleep(300 * time.Millisecond) // it would have counted on
		if got := count(); got != still {
			t.Errorf("counted from %d to %d while paused", still, got)
		}
		if got := r.run("resume", "c"); got != (result{}) {
			t.Errorf("resume: %+v", got)
		}
		if got := r.state("c").Status; got != "running" {
			t.Errorf("resumed: %s", got)
		}
		eventually(t, "it goes on", func() bool { return count() > still })
	})
}

func TestSignalsWaitForResumeButKILLDoesNot(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b, count := counting(t)
		r.started(b)
		eventually(t, "it counts", func() bool { return count() > 0 })
		r.run("pause", "c")
		r.run("kill", "c", "TERM")
		if got := r.state("c").Status; got != "paused" {
			t.Errorf("after TERM: %s", got)
		}
		r.run("resume", "c")
		r.waitUntil("c", "stopped")
		r.run("delete", "c")

		r.started(b)
		r.run("pause", "c")
		r.run("kill", "c", "KILL")
		r.waitUntil("c", "stopped")
		r.run("delete", "c")

		r.started(b)
		r.run("pause", "c")
		r.run("delete", "--force", "c")
	})
}

// A container can be paused between create and start; it comes back created.
func TestPauseOfACreatedContainer(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"sleep", "1000"})
		r.create(b, "c")
		r.run("pause", "c")
		if got := r.state("c").Status; got != "paused" {
			t.Errorf("paused: %s", got)
		}
		r.run("resume", "c")
		if got := r.state("c").Status; got != "created" {
			t.Errorf("resumed: %s", got)
		}
		r.run("start", "c")
		r.waitUntil("c", "running")
	})
}

// exec --ignore-paused starts a process that waits with the others.
func TestExecIntoAPausedContainerWaits(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		paused(r, newBundle(t, []string{"sleep", "1000"}))
		p := start(t, r.command("exec", "--ignore-paused", "c", "echo", "here"))
		eventually(t, "it waits in the cgroup", func() bool { return strings.Count(r.run("ps", "--format", "json", "c").stdout, ",") > 0 })
		if p.ended() {
			t.Fatalf("it did not wait: %s, %s", p.stdout(), p.stderr())
		}
		r.run("resume", "c")
		if got := p.wait(); got.code != 0 || got.stdout != "here\n" {
			t.Errorf("got %+v", got)
		}
	})
}

// living starts a sandbox that runs the shell script in the background and
// returns its id once it has printed ready.
func (s *sandboxes) living(script string, flags ...string) (id string, p *testProcess) {
	s.t.Helper()
	args := append(append([]string{"do"}, flags...), "--", "sh", "-c", "echo ready; "+script)
	p = start(s.t, s.command(args...))
	p.prints("ready\n")
	return strings.TrimSpace(s.oci("list", "--quiet").stdout), p
}

// oci runs an OCI command that is expected to work.
func (s *sandboxes) oci(args ...string) result {
	s.t.Helper()
	got := run(s.t, s.command(args...))
	if got.code != 0 {
		s.t.Fatalf("%q: status %d, stderr %s", args, got.code, got.stderr)
	}
	return got
}

func TestPauseHoldsASandboxOfDo(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	ran := filepath.Join(dir, "ran")
	id, p := s.living("while ! test -e go; do sleep 0.01; done; touch ran; exit 7", "--workspace", dir)
	s.oci("pause", id)
	if got := s.oci("state", id).stdout; !strings.Contains(got, `"status": "paused"`) {
		t.Errorf("state %s", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // it would have seen the file
	if exists(ran) || p.ended() {
		t.Error("it runs while paused")
	}
	s.oci("resume", id)
	if got := p.wait(); got.code != 7 || !exists(ran) {
		t.Errorf("resumed: %+v", got)
	}
}

// Who waits for the disk stands still only when that has answered.
func TestPauseWaitsForTheDisk(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	s.up("box", "--io-write", "1m", "--workspace", dir)
	if o := s.execJSON("box", "true"); o.Limits.IO != "enforced" {
		need(t, "no limits of disk traffic on this host")
	}
	s.detached("box", "while :; do dd if=/dev/zero of=f bs=512k count=100 oflag=direct 2>/dev/null; done") // twice a second
	eventually(t, "it writes", func() bool { return exists(filepath.Join(dir, "f")) })
	for range 5 {
		s.oci("pause", "box")
		s.oci("resume", "box")
	}
}

func TestTimeoutEndsAPausedSandbox(t *testing.T) {
	s := newSandboxes(t)
	inLongerTime(t, 2*time.Second, func(timeout string) bool {
		p := start(t, s.command("do", "--timeout", timeout, "--", "sh", "-c", "echo ready; exec sleep 1000"))
		eventually(t, "it is ready, or its time is over", func() bool { return p.stdout() != "" || p.ended() })
		paused := false
		if id := strings.TrimSpace(s.oci("list", "--quiet").stdout); id != "" {
			paused = run(t, s.command("pause", id)).code == 0
		}
		if got := p.wait(); got.code != 124 {
			t.Errorf("got %+v, want 124", got)
		}
		return paused
	})
}

// A user who may not write cgroups learns where the refusal comes from.
func TestPauseWithoutRightsToTheCgroupHints(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}))
		args := append([]string{"--mount", "sh", "-c", readOnlyCgroups, peer("bin/busybox")}, r.command("pause", "c").Args...)
		if got := run(t, exec.Command("unshare", args...)); got.code != 1 || !strings.Contains(got.stderr, "read-only file system") {
			t.Errorf("got %+v", got)
		}
	})
}
