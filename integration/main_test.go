package integration

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// noWorld is why the tests have no world of their own (world_test.go), empty
// if they have one. TestMain sets it once, before any test.
var noWorld string

func TestMain(m *testing.M) {
	switch os.Getenv(stageVariable) {
	case stageInit:
		os.Exit(worldInit())
	case stageTests:
		os.Exit(runTests(m))
	case stagePeer:
		os.Exit(peerMain())
	case stageCaller:
		os.Exit(callerMain())
	case stageProcessors:
		fmt.Println(runtime.GOMAXPROCS(0))
		os.Exit(0)
	}
	if noWorld = whyNoWorld(); noWorld != "" {
		os.Exit(m.Run()) // each test says why it skips
	}
	status, err := runInWorld()
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

// runTests runs the tests inside the world and fails if they leave anything
// in it: what single tests compare for themselves is compared again for all.
func runTests(m *testing.M) int {
	// Below nohup, and in the background of a script, all programs of the tests
	// would ignore them; what a handler is for is not ignored after an exec.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	before, err := readHost()
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	status := m.Run()
	if !throughPool.report() {
		fmt.Fprintln(os.Stderr, "integration: most sandboxes have claimed no blank")
		status = 1
	}
	if left := before.leftovers(); left != "" {
		fmt.Fprintf(os.Stderr, "integration: the tests left behind:\n%s", left)
		return 1
	}
	return status
}

// binary is the program under test: $SANDBOX_RUNTIME_BIN, or what make build
// puts into bin/.
func binary(t testing.TB) string {
	t.Helper()
	path := os.Getenv("SANDBOX_RUNTIME_BIN")
	if path == "" {
		path = "../bin/sandbox-runtime"
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run make build, or set SANDBOX_RUNTIME_BIN", err)
	}
	return path
}
