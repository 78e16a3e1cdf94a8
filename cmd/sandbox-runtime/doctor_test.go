package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/doctor"
)

// asCaller runs the program as another caller: changed by attr, and by a
// program in front of it if there is one.
func asCaller(t *testing.T, attr *syscall.SysProcAttr, front []string, args ...string) result {
	t.Helper()
	args = append(append(slices.Clone(front), "/proc/self/exe", "--data", t.TempDir()), args...)
	if len(front) > 0 {
		exe, err := os.Executable() // /proc/self/exe would be the one in front
		if err != nil {
			t.Fatal(err)
		}
		args[len(front)] = exe
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "XDG_RUNTIME_DIR=")
	cmd.SysProcAttr = attr
	cmd.Dir = "/"
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

func askDoctor(t *testing.T, attr *syscall.SysProcAttr, front ...string) doctor.Report {
	t.Helper()
	r := asCaller(t, attr, front, "doctor", "--json")
	if r.stderr != "" {
		t.Errorf("doctor --json said %q", r.stderr)
	}
	var report doctor.Report
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%.200q …: %v", r.stdout, err)
	}
	if report.Ready != (r.code == 0) || !report.Ready && r.code != 1 {
		t.Errorf("exit status %d with the verdict %q", r.code, report.Verdict)
	}
	if word, _, _ := strings.Cut(report.Verdict, ":"); word != map[bool]string{true: "ready", false: "not ready"}[report.Ready] {
		t.Errorf("verdict %q of a report with ready %v", report.Verdict, report.Ready)
	}
	return report
}

func onlyRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: becomes other users")
	}
}

var ordinaryUser = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}

// The doctor is right if do does what it says, whoever calls.
func TestDoctorAgreesWithDo(t *testing.T) {
	onlyRoot(t)
	enough := []string{"chown", "dac_override", "fowner", "kill", "net_admin", "setgid", "setuid", "sys_admin", "sys_chroot", "sys_ptrace"}
	callers := map[string]struct {
		attr  *syscall.SysProcAttr
		front []string
	}{
		"root":          {},
		"ordinary user": {attr: ordinaryUser},
	}
	if setpriv, err := exec.LookPath("setpriv"); err == nil {
		with := func(capabilities []string) []string {
			return []string{setpriv, "--bounding-set=-all,+" + strings.Join(capabilities, ",+")}
		}
		callers["root with enough capabilities"] = struct {
			attr  *syscall.SysProcAttr
			front []string
		}{front: with(enough)}
		for i, name := range enough {
			callers["root without "+name] = struct {
				attr  *syscall.SysProcAttr
				front []string
			}{front: with(slices.Delete(slices.Clone(enough), i, i+1))}
		}
	}
	for name, caller := range callers {
		t.Run(name, func(t *testing.T) {
			report := askDoctor(t, caller.attr, caller.front...)
			r := asCaller(t, caller.attr, caller.front, "do", "--", "true")
			if report.Ready != (r.code == 0) {
				t.Errorf("doctor: %s; do: exit status %d, %s", report.Verdict, r.code, r.stderr)
			}
			if name == "root with enough capabilities" && !report.Ready {
				t.Errorf("%s", report.Verdict)
			}
		})
	}
}

func TestDoctorProvesEachWall(t *testing.T) {
	onlyRoot(t)
	report := askDoctor(t, nil)
	if report.Unproven != "" || len(report.Proofs) != len(doctor.Walls()) {
		t.Fatalf("%d proofs, %q", len(report.Proofs), report.Unproven)
	}
	for _, p := range report.Proofs {
		if p.Status == doctor.ProofFailed || p.Name == "" || p.Title == "" {
			t.Errorf("%+v", p)
		}
	}
	text := asCaller(t, nil, nil, "doctor").stdout
	for _, want := range []string{"\nisolation, proven from inside a sandbox\n", "\n  ok       no capabilities", "not built: Landlock"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
}

// Without sandboxes there are no proofs, and a reason; with one that fails
// doctor is not content.
func TestDoctorSaysWhatIsNotProven(t *testing.T) {
	onlyRoot(t)
	report := askDoctor(t, ordinaryUser)
	if report.Unproven == "" || len(report.Proofs) != 0 {
		t.Errorf("an ordinary user: %q, %d proofs", report.Unproven, len(report.Proofs))
	}
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := asCaller(t, nil, nil, "--root", file, "doctor")
	if r.code != 1 || !strings.Contains(r.stdout, "nothing was proven: ") || !strings.Contains(r.stdout, "\nnot ready: ") {
		t.Errorf("a state root that is a file: %d, %.3000s", r.code, r.stdout)
	}
}

func TestDoctorTellsOrdinaryUsersWhatToDo(t *testing.T) {
	onlyRoot(t)
	report := askDoctor(t, ordinaryUser)
	for _, f := range report.Features {
		if f.Status != doctor.StatusOK && (f.Error == "" || f.Lost == "" || f.Status == doctor.StatusMissing && f.Fix == "") {
			t.Errorf("%+v lacks the reason, the loss or the way out", f)
		}
	}
	if !strings.Contains(report.Verdict, "root's capabilities") {
		t.Errorf("verdict %q", report.Verdict)
	}
}

func TestDoctorTakesNoArguments(t *testing.T) {
	if r := asCaller(t, nil, nil, "doctor", "house"); r.code != 1 || !strings.Contains(r.stderr, "sandbox-runtime: doctor takes no arguments") {
		t.Errorf("exit status %d, %q", r.code, r.stderr)
	}
}
