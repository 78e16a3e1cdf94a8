package launcher

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A program that makes sandboxes for months, some of which fail, has no more
// descriptors open in the end.
func TestSandboxesInARowKeepNoDescriptors(t *testing.T) {
	l := newTestLauncher(t)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // finalizers would hide what nobody closes
	round := func(i int) {
		command := []string{"true"}
		if i%2 == 0 {
			command = []string{"no such command"}
		}
		_, _ = runCommand(t, l, spec.Config{}, command...)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if s, err := l.Create(cancelled, spec.Config{}, Caller{}); err == nil {
			t.Error("created under a cancelled context")
			_ = s.Close()
		}
		if _, err := l.Create(t.Context(), spec.Config{Workspace: "/nowhere"}, Caller{}); err == nil {
			t.Error("created without its workspace")
		}
	}
	round(0) // what is opened once, and kept
	round(1)
	before := openFiles(t)
	for i := range 10 {
		round(i)
	}
	if now := openFiles(t); !slices.Equal(now, before) {
		t.Errorf("open before:\n%q\nafter:\n%q", before, now)
	}
	checkNothingLeft(t, l)
}

// openFiles says what each of this process's descriptors is.
func openFiles(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, link := range links {
		if what, err := os.Readlink(link); err == nil { // that of the listing is closed
			files = append(files, fmt.Sprint(filepath.Base(link), " ", what))
		}
	}
	return files
}
