package tenant_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/tenant"
)

// The tests' binary is its own launcher.
func TestMain(m *testing.M) {
	launcher.Main()
	os.Exit(m.Run())
}

// isolated is a real sandbox of a session.
func isolated(t *testing.T, s *tenant.Session) *sandbox.Sandbox {
	t.Helper()
	testhost.NeedRoot(t, "mounts and cgroups")
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Launcher: launcher.Command(launcher.Dirs{State: t.TempDir(), Data: t.TempDir()})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	sb, err := m.Create(t.Context(), s.Config(sandbox.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, sb)
	return sb
}

func TestSandboxHasItsSessionOnly(t *testing.T) {
	dir := t.TempDir() + "/data"
	tenants := open(t, dir)
	other := session(t, tenants, "alice", "2")
	if err := os.WriteFile(other.Host()+"/secret", []byte("secret-of-the-other"), 0o666); err != nil {
		t.Fatal(err)
	}
	mine := session(t, tenants, "alice", "1")
	sb := isolated(t, mine)
	r, err := sb.Run(t.Context(), fmt.Sprintf("echo made > f; ls -a; ls .. | grep -c alice; ls %s; grep -r secret-of-the-other / --include=secret -s; cat /proc/self/mountinfo | grep workspace", dir))
	if err != nil || !strings.HasPrefix(string(r.Stdout), ".\n..\nf\n0\n") || strings.Contains(string(r.Stdout), "secret-of") {
		t.Errorf("got %s, %v", r.Stdout, err)
	}
	f, err := mine.Open("/workspace/f", os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil || string(text) != "made\n" {
		t.Errorf("got %q, %v", text, err)
	}
	// And what the host makes is the sandbox user's.
	g, err := mine.Open("/workspace/g", os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.WriteString("from outside"); err != nil {
		t.Fatal(err)
	}
	g.Close()
	if r, err := sb.Run(t.Context(), "cat g; stat -c ' %u' g; rm g"); err != nil || string(r.Stdout) != "from outside 1000\n" || !r.OK() {
		t.Errorf("got %+v, %v", r, err)
	}
}

// A sandbox swaps path and link 10,000 times while the host reads and writes
// through them.
func TestSwapsLeadNowhere(t *testing.T) {
	dir := t.TempDir()
	canary := filepath.Join(dir, "canary")
	if err := os.WriteFile(canary, []byte("untouched"), 0o666); err != nil {
		t.Fatal(err)
	}
	s := session(t, open(t, dir+"/data"), "alice", "1")
	sb := isolated(t, s)
	script := fmt.Sprintf(`mkdir real; echo inside > real/canary; mkdir deep; mkdir deep/d; echo inside > deep/d/canary
python3 - <<'END'
import os
targets = ["%[1]s", "../../../..%[1]s", "../../..", "/proc/self/root%[1]s", "/workspace/real", "real"]
n = 0
while True:
    os.symlink(targets[n %% len(targets)], "new"); os.rename("new", "link")
    if n %% 2: os.rename("real", "gone"); os.symlink("%[1]s", "real"); os.unlink("real"); os.rename("gone", "real")
    os.rename("deep/d", "d"); os.rename("d", "deep/d")
    n += 1
END`, dir)
	swapping, err := sb.Start(t.Context(), sandbox.Command{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	defer swapping.Close()
	read, written, refused := 0, 0, 0
	names := []string{"/workspace/link/canary", "/workspace/real/canary", "/workspace/deep/d/../../real/canary", "/workspace/deep/d/canary"}
	enough := func() bool { return read >= 1000 && written >= 1000 && refused >= 100 }
	for n := 0; n < 10_000 || !enough() && n < 200_000; n++ { // a slow machine begins to swap late
		name := names[n%len(names)]
		if f, err := s.Open(name, os.O_RDONLY, 0); err == nil {
			text, _ := io.ReadAll(f)
			f.Close()
			if strings.Contains(string(text), "untouched") {
				t.Fatalf("%s is the canary", name)
			}
			read++
		} else if errors.Is(err, tenant.ErrOutside) {
			refused++
		}
		if f, err := s.Open(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err == nil {
			_, _ = f.WriteString("inside")
			f.Close()
			written++
		}
		if path, err := s.HostPath(name); err == nil && !strings.HasPrefix(path, s.Host()+"/") {
			t.Fatalf("%s is %s", name, path)
		}
	}
	if text, err := os.ReadFile(canary); err != nil || string(text) != "untouched" || !enough() {
		t.Errorf("the canary is %q, %v, after %d reads, %d writes and %d that led out", text, err, read, written, refused)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("outside are %v, %v", entries, err)
	}
}
