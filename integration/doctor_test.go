package integration

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

type doctorReport struct {
	Ready    bool
	Verdict  string
	Unproven string
	Proofs   []struct{ Name, Title, Status, Detail string }
}

// doctor has sandboxes look at their own walls, and leaves nothing of them.
func TestDoctorProvesASandboxsWalls(t *testing.T) {
	s := newSandboxes(t)
	got := run(t, s.command("doctor", "--json"))
	var report doctorReport
	decode(t, got.stdout, &report)
	if got.code != 0 || !report.Ready || report.Unproven != "" || len(report.Proofs) < 20 {
		t.Errorf("status %d, verdict %q, %d proofs, %q", got.code, report.Verdict, len(report.Proofs), report.Unproven)
	}
	notBuilt := []string{"landlock"}
	for _, p := range report.Proofs {
		if want := map[bool]string{true: "not built", false: "ok"}[slices.Contains(notBuilt, p.Name)]; p.Status != want {
			t.Errorf("%+v, want %s", p, want)
		}
	}
}

// A sandbox that loses a wall makes doctor say so: here cgroups in which no
// limit can be set.
func TestDoctorIsNotContentWithoutProofs(t *testing.T) {
	s := newSandboxes(t)
	args := append([]string{"--mount", "sh", "-c", readOnlyCgroups, peer("bin/busybox")}, s.command("doctor").Args...)
	need(t, peers())
	got := run(t, exec.Command("unshare", args...))
	if got.code != 1 || !strings.Contains(got.stdout, "nothing was proven: ") || !strings.Contains(got.stdout, "\nnot ready: ") {
		t.Errorf("got %+v", got)
	}
}
