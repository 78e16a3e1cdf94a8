package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
)

var updateDocs = flag.Bool("update-docs", false, "write the table of features into docs/kernel.md")

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

func askDoctor(t *testing.T, attr *syscall.SysProcAttr, front ...string) hostReport {
	t.Helper()
	r := asCaller(t, attr, front, "doctor", "--json")
	if r.stderr != "" {
		t.Errorf("doctor --json said %q", r.stderr)
	}
	var report hostReport
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
	if report.Unproven != "" || len(report.Proofs) != len(walls()) {
		t.Fatalf("%d proofs, %q", len(report.Proofs), report.Unproven)
	}
	for _, p := range report.Proofs {
		if p.Status == proofFailed || p.Name == "" || p.Title == "" {
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
		if f.Status != statusOK && (f.Error == "" || f.Lost == "" || f.Status == statusMissing && f.Fix == "") {
			t.Errorf("%+v lacks the reason, the loss or the way out", f)
		}
	}
	if !strings.Contains(report.Verdict, "root's capabilities") {
		t.Errorf("verdict %q", report.Verdict)
	}
}

func BenchmarkDoctor(b *testing.B) {
	for b.Loop() {
		if _, err := examine(); err != nil {
			b.Fatal(err)
		}
	}
}

func TestDoctorPrintsALineForEachThing(t *testing.T) {
	report, err := examine()
	if err != nil {
		t.Fatal(err)
	}
	report.Features[0].Status, report.Features[0].Error = statusMissing, "two\nlines"
	var b strings.Builder
	if err := report.write(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if last := lines[len(lines)-1]; last != report.Verdict {
		t.Errorf("the last line is %q, want the verdict", last)
	}
	marked := 0
	for _, l := range lines {
		for _, mark := range []string{"  ok       ", "  missing  ", "  warn     "} {
			if strings.HasPrefix(l, mark) {
				marked++
			}
		}
	}
	if least := len(report.Features) + len(report.Paths) + 2; marked < least {
		t.Errorf("%d lines with a mark, want at least %d:\n%s", marked, least, b.String())
	}
	if strings.Contains(b.String(), "two\nlines") {
		t.Error("an error of two lines took two lines")
	}
	if strings.Contains(b.String(), "\x1b") {
		t.Error("colours without a terminal")
	}
}

func TestVerdict(t *testing.T) {
	feature := func(need kernel.Need, status featureStatus) featureReport {
		return featureReport{Title: string(need) + " thing", Need: need, Status: status}
	}
	tests := map[string]struct {
		features []featureReport
		ready    bool
		line     string
	}{
		"all there": {
			[]featureReport{feature(kernel.Required, statusOK), feature(kernel.Isolating, statusOK)},
			true, "ready: do runs programs here fully isolated",
		},
		"useful missing": {
			[]featureReport{feature(kernel.Useful, statusMissing)},
			true, "ready: do runs programs here fully isolated; it lacks useful thing",
		},
		"wall missing": {
			[]featureReport{feature(kernel.Isolating, statusMissing), feature(kernel.Useful, statusMissing)},
			false, "not ready: do starts sandboxes here, but not fully isolated: it lacks isolating thing",
		},
		"required missing": {
			[]featureReport{feature(kernel.Required, statusMissing), feature(kernel.Required, statusUnknown), feature(kernel.Isolating, statusMissing)},
			false, "not ready: do cannot start a sandbox here: it lacks required thing; 1 thing could not be tried",
		},
		"required unknown": {
			[]featureReport{feature(kernel.Required, statusUnknown), feature(kernel.Required, statusUnknown)},
			false, "not ready: do cannot start a sandbox here: 2 things could not be tried",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if ready, line := verdict(test.features); ready != test.ready || line != test.line {
				t.Errorf("got %v, %q; want %v, %q", ready, line, test.ready, test.line)
			}
		})
	}
}

// Scripts read these names: add to them, change none.
func TestDoctorsJSONNamesAreStable(t *testing.T) {
	report, err := examine()
	if err != nil {
		t.Fatal(err)
	}
	report.compare("", demand{})
	data, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	has := func(where string, object any, names ...string) {
		for _, name := range names {
			if _, ok := object.(map[string]any)[name]; !ok {
				t.Errorf("%s has no %q", where, name)
			}
		}
	}
	has("the report", got, "ready", "verdict", "kernel", "uid", "container", "features", "paths", "settings", "rules", "quotas", "proofs", "unproven")
	has("kernel", got["kernel"], "release", "machine", "minimum", "recent_enough")
	has("a feature", got["features"].([]any)[0], "name", "group", "title", "status", "need", "since", "detail", "error", "lost", "fix")
	has("a path", got["paths"].([]any)[0], "path", "filesystem", "idmapped", "error")
	has("a quota", got["quotas"].([]any)[0], "name", "title", "status", "demand", "quota", "effect", "fix", "error")
	has("a setting", got["settings"].([]any)[0], "name", "value", "restricts", "effect", "fix")

	var names []string
	for _, f := range report.Features {
		names = append(names, string(f.Name))
	}
	want := strings.Fields(`privilege id_range user_namespaces mount_namespaces pid_namespaces network_namespaces
		ipc_namespaces uts_namespaces cgroup_namespaces time_namespaces mount_api mount_attributes idmapped_mounts
		idmapped_tmpfs procfs openat2 overlay overlay_in_user_namespaces memfd_exec pidfd close_range ptrace
		clone_into_cgroup seccomp_filter seccomp_actions seccomp_notify landlock landlock_network landlock_scopes
		nftables cgroups memory_limit cpu_limit pids_limit io_limit disk_storage`)
	for _, name := range want {
		if !slices.Contains(names, name) {
			t.Errorf("no feature %q", name)
		}
	}
}

func TestDoctorTakesNoArguments(t *testing.T) {
	if r := asCaller(t, nil, nil, "doctor", "house"); r.code != 1 || !strings.Contains(r.stderr, "sandbox-runtime: doctor takes no arguments") {
		t.Errorf("exit status %d, %q", r.code, r.stderr)
	}
}

func TestDocsHaveTheTableOfFeatures(t *testing.T) {
	const file, begin, end = "../../docs/kernel.md", "-update-docs -->\n", "<!-- end -->"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	want := featureTable()
	if *updateDocs {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("%s differs from the table in the code: run go test -tags seccomp ./cmd/sandbox-runtime -run Docs -update-docs", file)
	}
	if oldest := "**Linux " + kernel.Minimum().String() + ".**"; !strings.Contains(before, oldest) {
		t.Errorf("%s does not say %s", file, oldest)
	}
}

func featureTable() string {
	var b strings.Builder
	all := append(append(kernel.Features(), cgroupFeatures()...), storageFeature())
	for _, need := range []kernel.Need{kernel.Required, kernel.Isolating, kernel.Useful} {
		fmt.Fprintf(&b, "\n### %s\n\n| feature | since Linux | without it | how to get it |\n|---|---|---|---|\n",
			strings.ToUpper(string(need[:1]))+string(need[1:]))
		for _, f := range all {
			if f.Need != need {
				continue
			}
			since := f.Since.String()
			if f.Since == (kernel.Version{}) {
				since = "any"
			}
			fmt.Fprintf(&b, "| `%s`: %s | %s | %s | %s |\n", f.Name, f.Title, since, f.Lost, f.Get)
		}
	}
	return b.String() + "\n"
}
