package launcher

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A program with AddressSanitizer fails at its end, since LeakSanitizer may not trace it. The Result
// names the refused call and the way out, also if another program has started it. The way out works.
func TestRefusedCallsAreInTheResult(t *testing.T) {
	if older := testhost.LinuxBefore(t, 5, 7); older != "" {
		t.Skip(older)
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "p.c")
	testhost.WriteFile(t, source, "#include <stdio.h>\nint main(void) { return puts(\"out\") < 0; }\n")
	if out, err := exec.Command("gcc", "-fsanitize=address", "-o", filepath.Join(dir, "p"), source).CombinedOutput(); err != nil {
		t.Logf("%v: %s", err, out)
		t.Skip("gcc has no AddressSanitizer")
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l := newTestLauncher(t)
	binds := []spec.Bind{{Source: dir, Target: "/data"}}
	const trace = "refused to trace a process (ptrace), as debuggers and LeakSanitizer do (allow it with --seccomp debug)"
	for _, profile := range []string{"default", "strict"} {
		sb := createUp(t, l, "", spec.Config{Seccomp: profile, Binds: binds})
		for _, line := range []string{"exec /data/p", "sh -c /data/p; exit $?"} {
			r, out := sh(t, sb, line)
			if r.ExitCode != 1 || !strings.Contains(r.Reason, "the profile "+profile+" "+trace) || len(r.Violations) != 1 || r.Violations[0].Kind != "syscall" {
				t.Errorf("%s, %s: %+v %+v", profile, line, r, out)
			}
		}
		if r, _ := sh(t, sb, "/data/p; true"); !r.OK() || len(r.Violations) != 1 || !strings.Contains(r.Violations[0].Detail, trace) {
			t.Errorf("%s, a failure that the command ignores: %+v", profile, r)
		}
		if r, _ := sh(t, sb, "false"); strings.Contains(r.Reason, "profile") || len(r.Violations) > 0 {
			t.Errorf("%s, another failure: %+v", profile, r)
		}
		if r, _ := sh(t, sb, "unshare -U true"); !strings.Contains(r.Reason, "refused a new namespace") {
			t.Errorf("%s, a namespace: %+v", profile, r)
		}
	}
	sb := createUp(t, l, "", spec.Config{Seccomp: "debug", Binds: binds})
	if r, out := sh(t, sb, "exec /data/p"); !r.OK() || out.stdout != "out\n" || len(r.Violations) > 0 {
		t.Errorf("debug: %+v %+v", r, out)
	}
}
