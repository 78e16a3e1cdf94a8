package integration

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// batsVariable names files of runc's tests, without their ending, or is "all": make test-bats. The tests take
// minutes.
const batsVariable = "SANDBOX_RUNTIME_INTEGRATION_BATS"

// batsFolder is the folder that setup-bats has made, or "".
var batsFolder = sync.OnceValue(func() string {
	out, err := exec.Command("./setup-bats", "-n").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
})

func bats() string {
	switch {
	case os.Getenv(batsVariable) == "":
		return "not asked for: set " + batsVariable + ", or run make test-bats"
	case batsFolder() == "":
		return "no tests of runc: run integration/setup-bats"
	}
	return ""
}

// batsDifferences are runc's tests that fail here, and the reasons.
var batsDifferences = map[string]string{
	"runc -h": "the help names the program",
}

// batsTime is the time limit of the tests of one file. A file takes two minutes on a host with other work.
const batsTime = 15 * time.Minute

// A batsResult is the end of one test: "ok", "skipped" or "not ok", with the reason or the output.
type batsResult struct{ state, text string }

// TestBats runs runc's own integration tests with runc and with this program: each test has the same result. A
// test that fails with runc proves nothing, and fails here, too.
func TestBats(t *testing.T) {
	need(t, world(), peers(), bats())
	files, err := filepath.Glob(filepath.Join(batsFolder(), "runc/tests/integration/*.bats"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests of runc: %v", err)
	}
	asked := os.Getenv(batsVariable)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".bats")
		if asked != "all" && !strings.Contains(","+asked+",", ","+name+",") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			program := binary(t)
			if name == "create" {
				program = namedRunc(t)
			}
			compareBats(t, runBats(t, file, peer("bin/runc")), runBats(t, file, program))
		})
	}
}

// namedRunc is a copy of the program with the name runc: a test of create allows the init no other program among
// its open files.
func namedRunc(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "runc")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func compareBats(t *testing.T, want, got map[string]batsResult) {
	t.Helper()
	count := map[string]int{}
	for _, test := range slices.Sorted(maps.Keys(want)) {
		of, with := want[test], got[test]
		count[with.state]++
		reason, known := batsDifferences[test]
		switch {
		case of.state == "not ok":
			t.Errorf("%s: fails with runc: %s\n%s here: %s", test, of.text, with.state, with.text)
		case with.state == of.state && of.state == "skipped":
			t.Logf("%s: skipped: %s", test, of.text)
		case with.state == of.state:
		case known:
			t.Logf("%s: %s, with runc %s: %s", test, with.state, of.state, reason)
		default:
			t.Errorf("%s: %s, with runc %s; %s", test, with.state, of.state, with.text)
		}
	}
	t.Logf("%d tests: %d ok, %d skipped, %d not ok", len(want), count["ok"], count["skipped"], count["not ok"])
}

// runBats runs the tests of a file with a program as runc, on a terminal, which some tests need. The results are
// by the names of the tests.
func runBats(t *testing.T, file, program string) map[string]batsResult {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer tty.Close()
	ctx, cancel := context.WithTimeout(t.Context(), batsTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(batsFolder(), "tools/usr/bin/bats"), "--tap", file)
	temp := t.TempDir()
	if err := os.Chmod(filepath.Dir(temp), 0o711); err != nil { // root of a user namespace has to come through
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "RUNC="+program, "HOME=/root", "TMPDIR="+temp, "PATH="+batsPath(t))
	cmd.Dir = filepath.Dir(file)
	cmd.Stdin, cmd.SysProcAttr = tty, &syscall.SysProcAttr{Setsid: true, Setctty: true}
	out, err := cmd.Output()
	results := readTAP(string(out))
	if len(results) == 0 || ctx.Err() != nil {
		t.Fatalf("bats: %v: %s", errors.Join(err, ctx.Err()), out)
	}
	return results
}

// batsPath has the host's programs, those of setup-bats, and go, which names the tests' images.
func batsPath(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	tools := filepath.Join(batsFolder(), "tools")
	return strings.Join([]string{"/usr/sbin:/usr/bin:/sbin:/bin", tools + "/usr/bin", tools + "/bin", filepath.Dir(program)}, ":")
}

// readTAP reads the output of bats --tap.
func readTAP(output string) map[string]batsResult {
	results := map[string]batsResult{}
	last := ""
	for line := range strings.Lines(output) {
		line = strings.TrimSuffix(line, "\n")
		state, rest, _ := strings.Cut(line, " ")
		if state == "not" {
			state, rest = "not ok", strings.TrimPrefix(rest, "ok ")
		}
		switch {
		case strings.HasPrefix(line, "#"):
			r := results[last]
			results[last] = batsResult{r.state, r.text + "\n" + line}
			continue
		case state != "ok" && state != "not ok":
			continue
		}
		_, rest, _ = strings.Cut(rest, " ") // its number
		test, reason, skipped := strings.Cut(rest, " # skip")
		if skipped {
			state = "skipped"
		}
		results[test], last = batsResult{state, strings.TrimSpace(reason)}, test
	}
	return results
}
