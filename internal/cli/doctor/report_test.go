package doctor

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
)

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
	report.Features[0].Status, report.Features[0].Error = StatusMissing, "two\nlines"
	var b strings.Builder
	if err := report.Write(&b); err != nil {
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
			[]featureReport{feature(kernel.Required, StatusOK), feature(kernel.Isolating, StatusOK)},
			true, "ready: do runs programs here fully isolated",
		},
		"useful missing": {
			[]featureReport{feature(kernel.Useful, StatusMissing)},
			true, "ready: do runs programs here fully isolated; it lacks useful thing",
		},
		"wall missing": {
			[]featureReport{feature(kernel.Isolating, StatusMissing), feature(kernel.Useful, StatusMissing)},
			false, "not ready: do starts sandboxes here, but not fully isolated: it lacks isolating thing",
		},
		"required missing": {
			[]featureReport{feature(kernel.Required, StatusMissing), feature(kernel.Required, statusUnknown), feature(kernel.Isolating, StatusMissing)},
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
		nftables proxied_network tproxy cgroups memory_limit cpu_limit pids_limit io_limit disk_storage`)
	for _, name := range want {
		if !slices.Contains(names, name) {
			t.Errorf("no feature %q", name)
		}
	}
}

func TestDocsHaveTheTableOfFeatures(t *testing.T) {
	const file, begin, end = "../../../docs/kernel.md", "-update-docs -->\n", "<!-- end -->"
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
		t.Errorf("%s differs from the table in the code: run go test -tags seccomp ./internal/cli/doctor -run Docs -update-docs", file)
	}
	if oldest := "**Linux " + kernel.Minimum().String() + ".**"; !strings.Contains(before, oldest) {
		t.Errorf("%s does not say %s", file, oldest)
	}
}

func featureTable() string {
	var b strings.Builder
	all := slices.Concat(kernel.Features(), proxiedFeatures(), cgroupFeatures(), []kernel.Info{storageFeature()})
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

var updateDocs = flag.Bool("update-docs", false, "write the table of features into docs/kernel.md")
