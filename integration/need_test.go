package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// need skips the test if any of the reasons is not empty: each says what this
// host lacks. Where CI=true a skip is a failure, unless .ci/skips lists the
// reason: a test that silently stopped running is worse than a red one.
func need(t testing.TB, reasons ...string) {
	t.Helper()
	for _, reason := range reasons {
		if reason == "" {
			continue
		}
		if os.Getenv("CI") == "true" && !allowedSkip(t, reason) {
			t.Fatalf("skip not listed in .ci/skips: %s", reason)
		}
		t.Skip(reason)
	}
}

// allowedSkip looks the reason up in .ci/skips: one per line, # starts a
// comment.
func allowedSkip(t testing.TB, reason string) bool {
	t.Helper()
	list, err := os.ReadFile("../.ci/skips")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" && line == reason {
			return true
		}
	}
	return false
}

// world says why the tests have no world of their own.
func world() string {
	if noWorld == "" {
		return ""
	}
	return "no private namespaces and cgroups: " + noWorld
}

// peersFolder is where setup put the other programs, empty if it did not run.
var peersFolder = sync.OnceValue(func() string {
	path, err := exec.Command("./setup", "-n").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(path))
})

// peers says that setup did not run.
func peers() string {
	if peersFolder() == "" {
		return "no peers: run integration/setup"
	}
	return ""
}

// peer returns the path of a program or file that setup fetched.
func peer(path string) string { return filepath.Join(peersFolder(), path) }
