package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	ocibundle "github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
)

// strong makes the attacker nearly as strong as a privileged container.
var strong = withCapabilities("CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH")

// runsItsRuntime is a script whose interpreter is whatever executes it: the
// runtime itself, inside.
func runsItsRuntime(t *testing.T, root string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root, "bin/evil"), []byte("#!/proc/self/exe\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// CVE-2019-5736: a process in the container waits for the runtime to come in
// for an exec, holds its program by /proc/PID/exe, and writes to that.
func TestAttackOnTheRuntimesProgram(t *testing.T) {
	leavesNothing(t)
	r := newRuntime(t, copyOf(t, binary(t)))
	unchanged(t, r.program)
	root := newAttackRoot(t)
	runsItsRuntime(t, root)
	b := newAttack(t, []string{"attack", "write-exes"}, withRoot(root), readOnlyRoot, strong)
	attacker := start(t, r.command("run", "--bundle", b.dir, "attacker"))
	eventually(t, "the attack runs", func() bool { return strings.HasPrefix(attacker.stdout(), "ready\n") })
	execs := 0
	eventually(t, "the attack sees what is executed, in 30 execs or more", func() bool {
		run(t, r.command("exec", "attacker", "/bin/evil"))
		run(t, r.command("exec", "attacker", "true"))
		execs += 2
		return execs >= 30 && strings.Contains(attacker.stdout(), "holds")
	})
	if seen := attacker.stdout(); strings.Contains(seen, "wrote") {
		t.Errorf("what the attack did in %d execs: %s", execs, seen)
	}
	seesAWeakRuntime(t, r, attacker)
	r.run("kill", "attacker", "KILL")
	attacker.wait()
}

// copyOf is a program that may be damaged: an attack that succeeds writes to
// whatever comes near it, and that must never be a file of the host's own.
func copyOf(t *testing.T, program string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(program))
	if err := ocibundle.CopyProgram(program, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// enter runs a program of the host in a container's pid namespace, as a runtime
// without precautions would, until leave. Both it and nsenter are copies.
func enter(t *testing.T, r *ociRuntime, id string, files ...*os.File) (program string, leave func()) {
	t.Helper()
	attack, err := attackProgram()
	if err != nil {
		t.Fatal(err)
	}
	program = copyOf(t, attack)
	stdin, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(copyOf(t, hostTool(t, "nsenter")), "--target", strconv.Itoa(r.state(id).PID), "--pid", program, "wait")
	cmd.Stdin, cmd.ExtraFiles = stdin, files
	p := start(t, cmd)
	stdin.Close()
	return program, func() {
		write.Close()
		p.wait()
	}
}

// seesAWeakRuntime has a program that does not protect itself come into the
// attacker's pid namespace: the attack must overwrite it.
func seesAWeakRuntime(t *testing.T, r *ociRuntime, attacker *testProcess) {
	t.Helper()
	victim, leave := enter(t, r, "attacker")
	before := sumOf(t, victim)
	eventually(t, "the attack sees "+victim, func() bool { return strings.Contains(attacker.stdout(), "holds "+victim) })
	leave()
	eventually(t, "a weak runtime's program is overwritten", func() bool {
		return sumOf(t, victim) != before && strings.Contains(attacker.stdout(), "wrote")
	})
}

// The first half of the same: the container's own program is the runtime.
func TestAttackByAnEntrypointThatIsTheRuntime(t *testing.T) {
	leavesNothing(t)
	r := newRuntime(t, copyOf(t, binary(t)))
	unchanged(t, r.program)
	root := newAttackRoot(t)
	runsItsRuntime(t, root)
	for _, args := range [][]string{{"/bin/evil"}, {"/proc/self/exe", "run", "x"}, {"/proc/self/exe", "init"}} {
		b := newAttack(t, args, withRoot(root), strong)
		before := time.Now()
		if got := r.runBundle(b); got.code == 0 || time.Since(before) > patience/2 {
			t.Errorf("%q: %+v", args, got)
		}
	}
	writes := "for exe in /proc/self/exe /proc/1/exe; do echo canary > $exe && echo wrote; done; true"
	b := newAttack(t, []string{"sh", "-c", writes}, strong)
	if got := r.runBundle(b); got.code != 0 || got.stdout != "" {
		t.Errorf("got %+v", got)
	}
}

func TestAttackOnPID1sProgram(t *testing.T) {
	t.Setenv("SANDBOX_RUNTIME_BIN", copyOf(t, binary(t)))
	s := newSandboxes(t)
	unchanged(t, binary(t))
	for _, user := range []string{"0", "1000"} {
		inLongerTime(t, 2*time.Second, func(timeout string) bool {
			got := s.json("--rootfs", sharedAttackRoot(t), "--user", user, "--timeout", timeout, "--", "attack", "write-exes")
			if got.Status != "timed_out" || !strings.HasPrefix("ready\n", got.Stdout) {
				t.Errorf("--user %s: %+v", user, got)
			}
			return got.Stdout != ""
		})
		writes := "for exe in /proc/self/exe /proc/1/exe; do echo canary > $exe && echo wrote; done; true"
		if got := s.do("--user", user, "--", "sh", "-c", writes); got.code != 0 || got.stdout != "" {
			t.Errorf("--user %s: %+v", user, got)
		}
	}
	if got := s.do("--", "echo", "works"); got.stdout != "works\n" {
		t.Errorf("afterwards: %+v", got)
	}
}
