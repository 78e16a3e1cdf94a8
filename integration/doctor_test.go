package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type doctorReport struct {
	Ready    bool
	Verdict  string
	Unproven string
	Proofs   []struct{ Name, Title, Status, Detail string }
	Rules    string
	Quotas   []struct {
		Name, Status, Effect, Fix string
		Demand, Quota             int64
	}
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

// Rules that allow more than the kernel has make doctor warn, and the host stays ready.
func TestDoctorComparesRulesWithQuotas(t *testing.T) {
	s := newSandboxes(t)
	rules := filepath.Join(t.TempDir(), "rules.json")
	for text, status := range map[string]string{
		`{"peers":[{"user":1001,"sandboxes":1099511627776,"limits":{"memory":"1t"}}]}`: "warn",
		`{"peers":[{"user":1001,"sandboxes":1,"limits":{"memory":"16m"}}]}`:            "ok",
	} {
		if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := run(t, s.command("doctor", "--json", "--rules", rules))
		var report doctorReport
		decode(t, got.stdout, &report)
		if got.code != 0 || !report.Ready || report.Rules != rules || len(report.Quotas) != 4 {
			t.Errorf("%s: status %d, %+v", text, got.code, report)
		}
		for _, q := range report.Quotas {
			unlimited := q.Quota == 1<<63-1 // fs.file-max where systemd has set it
			if q.Status != status && !unlimited || (q.Demand > q.Quota) != (q.Status == "warn") || (q.Fix == "") != (q.Status == "ok") {
				t.Errorf("%s: %+v", text, q)
			}
		}
	}
}

// The defaults are nobody's rules: doctor does not warn of them.
func TestDoctorDoesNotWarnOfDefaults(t *testing.T) {
	s := newSandboxes(t)
	got := run(t, s.command("doctor"))
	_, quotas, found := strings.Cut(got.stdout, "\nquotas that sandboxes share, for 16 sandboxes with the default limits\n")
	quotas, _, ended := strings.Cut(quotas, "\nnetwork of sandboxes")
	if !found || !ended || strings.Count(quotas, "\n") != 3 || strings.Contains(quotas, "  warn ") {
		t.Errorf("got %+v", got)
	}
}

func TestDoctorNamesBadRules(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	bad, open := filepath.Join(dir, "bad.json"), filepath.Join(dir, "open.json")
	if err := os.WriteFile(bad, []byte(`{"peers":[{"user":1001,"sandboxs":1}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(open, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, rules := range []string{bad, open, dir, filepath.Join(dir, "missing.json")} {
		got := run(t, s.command("doctor", "--rules", rules))
		if got.code != 1 || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, "option --rules: ") || !strings.Contains(got.stderr, rules) {
			t.Errorf("%s: %+v", rules, got)
		}
	}
}
