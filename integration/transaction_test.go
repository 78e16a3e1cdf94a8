package integration

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestExecTransactionAndUndo(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	s.up("box")
	s.sh("box", "echo old > file")
	if got := s.exec("--transaction", "box", "sh", "-c", "echo new > file; exit 3"); got.code != 3 || s.sh("box", "cat file") != "old\n" {
		t.Errorf("one that fails: %+v", got)
	}
	if got := s.exec("--transaction", "box", "sh", "-c", "echo new > file; echo said"); got != (result{0, "said\n", ""}) || s.sh("box", "cat file") != "new\n" {
		t.Errorf("one that succeeds: %+v", got)
	}
	if got := run(t, s.command("undo", "box")); got != (result{0, "", "took back the last transaction of box\n"}) || s.sh("box", "cat file") != "old\n" {
		t.Errorf("undo: %+v", got)
	}
	for _, args := range [][]string{{"undo", "box"}, {"undo", "box", "0"}, {"undo", "box", "x"}, {"undo"}, {"undo", "nobox"},
		{"exec", "--transaction", "--detach", "box", "true"}} {
		if got := run(t, s.command(args...)); got.code == 0 || got.stderr == "" {
			t.Errorf("%q: %+v", args, got)
		}
	}
	// Others change the same file while it runs.
	other := start(t, s.command("exec", "box", "sh", "-c", "while [ ! -e /tmp/written ]; do sleep 0.01; done; echo other > file; touch /tmp/go"))
	got := s.exec("--transaction", "box", "sh", "-c", "echo new > file; touch /tmp/written; while [ ! -e /tmp/go ]; do sleep 0.01; done")
	if got.code != 125 || !strings.Contains(got.stderr, "/workspace/file") || s.sh("box", "cat file") != "other\n" {
		t.Errorf("a conflict: %+v", got)
	}
	if got := other.wait(); got != (result{}) {
		t.Errorf("what others do: %+v", got)
	}
}

// Killed at any moment, a transaction has joined or not, and an undo has undone or
// not: which of both, the next command finds.
func TestTransactionsKilledAtFailpoints(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	dir := t.TempDir()
	s.up("c", "--overlay", dir, "--cwd", "/workspace")
	s.sh("c", "echo old > file; mkdir d; echo x > d/x; echo old > "+dir+"/file")
	look := func() string {
		return s.sh("c", "find /workspace "+dir+` -name 'd*' -o -name 'file*' | LC_ALL=C sort | while read f; do echo $f; [ -d $f ] || cat $f; done; ls -A /workspace`)
	}
	before := look()
	first := []string{"exec", "--transaction", "c", "sh", "-c", "echo first > file; rm d/x; echo first > " + dir + "/file"}
	line := "echo new > file; rm -r d; echo new > file2; echo new > " + dir + "/file; echo new > " + dir + "/file2"
	change := []string{"exec", "--transaction", "c", "sh", "-c", line}
	var after string
	at := "before"
	undo := func() {
		t.Helper()
		if got := run(t, s.command("undo", "c")); got.code != 0 {
			t.Fatalf("%s: undo: %+v", at, got)
		}
	}
	transact := func(args []string) {
		t.Helper()
		if got := run(t, s.command(args...)); got.code != 0 {
			t.Fatalf("transaction: %+v", got)
		}
	}
	strike := func(n int, args []string) failpoint.Trace {
		trace, err := failpoint.Run(s.command(args...), n, patience)
		if err != nil {
			t.Fatal(err)
		}
		return trace
	}
	for name, args := range map[string][]string{"transaction": change, "undo": {"undo", "c"}} {
		begin := func() {
			transact(first)
			if name == "undo" {
				transact(change)
			}
		}
		transact(first)
		between := look()
		transact(change)
		after = look()
		undo()
		undo()
		begin()
		points := len(strike(0, args).Points)
		if name == "transaction" {
			undo()
		}
		undo()
		kills, done := 0, 0
		for i, n := range someFailpoints(points, 40) {
			begin()
			trace := strike(n, args)
			at = fmt.Sprintf("%s killed at %d, %v", name, n, trace.Points[len(trace.Points)-1])
			if i%3 == 0 {
				s.strikeAgain(t)
			}
			now := look()
			if now != between && now != after {
				t.Fatalf("%s: there is\n%s\nwhich is neither\n%s\nnor\n%s", at, now, between, after)
			}
			if trace.Killed {
				kills++
			}
			if now == after {
				done++
				undo()
			}
			if now := look(); now != between {
				t.Fatalf("%s: after an undo there is\n%s", at, now)
			}
			undo() // what is done again, or undone, is no conflict of the one before
			if now := look(); now != before {
				t.Fatalf("%s: after both are undone there is\n%s", at, now)
			}
		}
		t.Logf("%s: %d failpoints, %d kills, %d times it was whole before or after", name, points, kills, done)
		if kills == 0 {
			t.Errorf("%s: never killed", name)
		}
	}
	if left := s.sh("c", "ls -A /workspace "+dir+" | grep -c sandbox-runtime || true"); left != "0\n" {
		t.Errorf("%s of the runtime's own directories are left", strconv.Quote(left))
	}
}

// layersOfAnywhere says that this kernel makes no overlay of mounts that are attached
// nowhere.
func layersOfAnywhere(t testing.TB) string { t.Helper(); return testhost.LinuxBefore(t, 6, 15) }
