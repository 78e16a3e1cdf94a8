package integration

import (
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// need skips the test if any of the reasons is not empty: each says what this
// host lacks. scripts/gotest judges skips, where CI=true.
func need(t testing.TB, reasons ...string) {
	t.Helper()
	for _, reason := range reasons {
		if reason != "" {
			t.Skip(reason)
		}
	}
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
