package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A project is real software. Its own tests must give the same results on the host and in a
// sandbox with the default limits.
type project struct {
	name    string
	overlay bool   // the sources are an overlay of the sandbox, not its workspace
	script  string // builds the project and runs its tests
	passed  string // matches what the script prints of passed tests; a group is their number
}

// projects are those that setup-projects fetches.
var projects = []project{
	{"zlib", false, "./configure && make && make check", `(?m)\*\*\* zlib .*test OK \*\*\*$`},
	{"libcsv", true, "gcc -O2 -o check test_csv.c libcsv.c && ./check", `All tests passed`},
	{"cjson", false, "cmake -S . -B build -DENABLE_CJSON_TEST=ON && cmake --build build && ctest --test-dir build", `, 0 tests failed out of (\d+)`},
	{"libjsoncpp", true, "cmake -S . -B build -DBUILD_STATIC_LIBS=OFF -DBUILD_OBJECT_LIBS=OFF && cmake --build build", `All (\d+) tests passed`},
	{"tinyxml2", false, "make CXXFLAGS=-O1 xmltest && ./xmltest", `Pass (\d+), Fail 0`},
	{"cobra", true, "go test -p 1 -json ./...", `"Action":"pass".*"Test":`},
	{"pflag", false, "go test -p 1 -json ./...", `"Action":"pass".*"Test":`},
	{"semver", true, "cargo test --offline", `test result: ok\. (\d+) passed; 0 failed`},
	{"json-simple", false, "mvn -B -o -s settings.xml test", `(?m)^\[INFO\] Tests run: (\d+), Failures: 0, Errors: 0, Skipped: 0$`},
	{"find-my-way", true, "node --test --test-reporter=tap", `(?m)^# pass (\d+)$`},
	{"jinja2", false, "PYTHONPATH=src python3 -m pytest -q -p no:cacheprovider tests", `(\d+) passed`},
	{"toolz", true, "python3 -m pytest -q -p no:cacheprovider", `(\d+) passed`},
}

const (
	projectUser = 1000
	projectTime = 20 * time.Minute // patience is too short for a build
)

// projectsFolder is where setup-projects put the sources, empty if it did not run.
var projectsFolder = sync.OnceValue(func() string {
	path, err := exec.Command("./setup-projects", "-n").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(path))
})

// projectsSetup says that setup-projects did not run.
func projectsSetup() string {
	if projectsFolder() == "" {
		return "no projects: run integration/setup-projects"
	}
	return ""
}

// A build is one run of a project's script.
type build struct {
	code   int
	passed int
	cpu    time.Duration
	output string
}

// Each project passes its tests in a sandbox as it does on the host. With
// SANDBOX_RUNTIME_INTEGRATION_PAIRS=N this test repeats both N times in all, and prints the
// processor time inside as a multiple of the host's.
func TestProjects(t *testing.T) {
	need(t, world(), projectsSetup())
	pairs := projectPairs(t)
	for _, p := range projects {
		t.Run(p.name, func(t *testing.T) {
			var ratios []float64
			var host, inside build
			for i := range pairs {
				if i%2 == 0 {
					host, inside = p.onHost(t), p.inSandbox(t)
				} else {
					inside, host = p.inSandbox(t), p.onHost(t)
				}
				p.compare(t, host, inside)
				ratios = append(ratios, inside.cpu.Seconds()/host.cpu.Seconds())
			}
			slices.Sort(ratios)
			t.Logf("%d passed; processor time: host %.1f s, sandbox %.1f s; ratio %.3f (%.3f to %.3f, n = %d)", host.passed,
				host.cpu.Seconds(), inside.cpu.Seconds(), ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1], len(ratios))
		})
	}
}

func projectPairs(t *testing.T) int {
	t.Helper()
	text := os.Getenv("SANDBOX_RUNTIME_INTEGRATION_PAIRS")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("SANDBOX_RUNTIME_INTEGRATION_PAIRS=%s: use a number from 1", text)
	}
	return n
}

// compare holds that the sandbox's build has the results of the host's, and that these are
// of passed tests.
func (p project) compare(t *testing.T, host, inside build) {
	t.Helper()
	if host.code != 0 || host.passed == 0 {
		t.Fatalf("on the host: status %d, %d passed:\n%s", host.code, host.passed, lastLines(host.output, 40))
	}
	if inside.code != host.code || inside.passed != host.passed {
		t.Errorf("status %d, %d passed; on the host: status %d, %d passed:\n%s", inside.code, inside.passed,
			host.code, host.passed, lastLines(inside.output, 40))
	}
}

// copied is a copy of the sources for one run. The user of sandboxes owns the copy.
func (p project) copied(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(openFolder(t), p.name)
	if got := run(t, exec.Command("cp", "-R", "--preserve=mode,timestamps,links", filepath.Join(projectsFolder(), p.name), dir)); got.code != 0 {
		t.Fatalf("copy: %+v", got)
	}
	own(t, dir, projectUser)
	return dir
}

// projectEnvironment are the variables that both sides have, beside those of their users.
func projectEnvironment() []string {
	return []string{"PATH=/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "GOTOOLCHAIN=local", "GOPROXY=off", "CARGO_NET_OFFLINE=true", "PYTHONDONTWRITEBYTECODE=1"}
}

func (p project) onHost(t *testing.T) build {
	t.Helper()
	dir, home := p.copied(t), openFolder(t)
	own(t, home, projectUser)
	cmd := exec.Command("sh", "-c", "exec 2>&1; "+p.script)
	cmd.Dir = dir
	cmd.Env = append(projectEnvironment(), "HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: projectUser, Gid: projectUser}}
	got := runLong(t, cmd)
	state := cmd.ProcessState
	return p.built(t, got.code, state.UserTime()+state.SystemTime(), got.stdout)
}

func (p project) inSandbox(t *testing.T) build {
	t.Helper()
	s, dir := newSandboxes(t), p.copied(t)
	args := []string{"do", "--json", "--workspace", dir}
	if p.overlay {
		args = []string{"do", "--json", "--overlay", dir, "--cwd", dir}
	}
	for _, variable := range projectEnvironment() {
		args = append(args, "--env", variable)
	}
	o := s.resultOf(runLong(t, s.command(append(args, "--", "sh", "-c", "exec 2>&1; "+p.script)...)))
	if o.Status != "exited" || len(o.Violations) > 0 || o.StdoutTruncated {
		t.Errorf("status %s, violations %v, output truncated %t: %s", o.Status, o.Violations, o.StdoutTruncated, o.Reason)
	}
	output := o.Stdout
	if output == "" {
		output = string(o.StdoutBase64)
	}
	return p.built(t, o.ExitCode, time.Duration(o.CPUMS*float64(time.Millisecond)), output)
}

// runLong is run for a command that takes minutes.
func runLong(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), projectTime)
	defer cancel()
	r := start(t, cmd)
	select {
	case <-r.done:
	case <-ctx.Done():
		t.Fatalf("%q has not ended after %v: %s", cmd.Args, projectTime, r.abort())
	}
	return r.wait()
}

// built reads the number of passed tests from the output.
func (p project) built(t *testing.T, code int, cpu time.Duration, output string) build {
	t.Helper()
	b := build{code: code, cpu: cpu, output: output}
	for _, match := range regexp.MustCompile(p.passed).FindAllStringSubmatch(output, -1) {
		n := 1
		if len(match) > 1 {
			var err error
			if n, err = strconv.Atoi(match[1]); err != nil {
				t.Fatal(fmt.Errorf("number of passed tests: %w", err))
			}
		}
		b.passed += n
	}
	return b
}
