package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A program that makes sandboxes for months, some of which fail, has no more
// descriptors open in the end.
func TestSandboxesInARowKeepNoDescriptors(t *testing.T) {
	testhost.Long(t)
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
		if s, err := createTied(cancelled, l, spec.Config{}); err == nil {
			t.Error("created under a cancelled context")
			_ = s.Close()
		}
		if _, err := createTied(t.Context(), l, spec.Config{Workspace: "/nowhere"}); err == nil {
			t.Error("created without its workspace")
		}
	}
	round(0) // what is opened once, and kept
	round(1)
	l.Close()
	before := openFiles(t)
	for i := range 10 {
		round(i)
	}
	l.Close()
	// Some of what earlier tests had open may be closed by now.
	more := slices.DeleteFunc(openFiles(t), func(f string) bool { return slices.Contains(before, f) })
	if len(more) > 0 {
		t.Errorf("open before:\n%q\nand now also:\n%q", before, more)
	}
	checkNothingLeft(t, l)
}

// libcontainer does not close the pidfd of a process that it has started.
func TestPidfdsGoWithTheGarbage(t *testing.T) {
	l := newTestLauncher(t)
	for range 3 {
		createUp(t, l, "", spec.Config{}).Release()
	}
	eventually(t, "all pidfds are closed", func() bool {
		runtime.GC()
		links, err := filepath.Glob("/proc/self/fd/*")
		return err == nil && !slices.ContainsFunc(links, func(link string) bool {
			what, _ := os.Readlink(link) // that of the listing is closed
			return strings.Contains(what, "pidfd")
		})
	})
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
		// That of the listing is closed. The pidfd of a PID 1 is libcontainer's,
		// which keeps it until the garbage collector comes; see the next test.
		if what, err := os.Readlink(link); err == nil && !strings.Contains(what, "pidfd") {
			files = append(files, fmt.Sprint(filepath.Base(link), " ", what))
		}
	}
	return files
}

// Who asks again and again for what is not there has the launcher keep nothing.
func TestDetachedCommandsThatDoNotStartKeepNoDescriptors(t *testing.T) {
	sb := createUp(t, newTestLauncher(t), "", spec.Config{})
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // as above
	for range 3 {
		if _, err := sb.Start(t.Context(), spec.Command{Args: []string{"no-such-command"}, Detached: true}, [3]*os.File{}); err == nil {
			t.Fatal("started")
		}
	}
	for _, f := range openFiles(t) {
		if strings.Contains(f, "/execs/") {
			t.Errorf("open: %s", f)
		}
	}
}

// A container of the OCI commands may take the name while the sandbox is made.
func TestANameThatIsTakenMeanwhileKeepsNoDescriptors(t *testing.T) {
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	defer debug.SetGCPercent(debug.SetGCPercent(-1))    // as above
	_, err := createTied(t.Context(), l, spec.Config{}) // what is opened once, and kept
	if err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	for i := range 20 {
		if takenMeanwhile(t, l, fmt.Sprint("box", i)) {
			break
		}
	}
	for _, f := range openFiles(t) {
		if strings.Contains(f, "socket:") && !slices.Contains(before, f) {
			t.Errorf("open: %s", f)
		}
	}
}

// takenMeanwhile makes a sandbox of a name that somebody takes once it was found
// free; false if that came too late.
func takenMeanwhile(t *testing.T, l *Launcher, name string) bool {
	t.Helper()
	container := filepath.Join(l.State, name)
	took := make(chan error, 1)
	go func() {
		for {
			if _, err := os.Lstat(filepath.Join(l.Dir(name), jobs.SocketName)); err == nil {
				took <- os.Mkdir(container, 0o700)
				return
			}
		}
	}()
	sb, err := l.Create(t.Context(), protocol.Create{Name: name}, Sources{})
	switch taken := <-took; {
	case err == nil && taken != nil:
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
		return false
	case taken != nil || !errors.Is(err, fault.ErrExists):
		t.Fatalf("taken: %v; made: %v", taken, err)
	}
	if err := os.Remove(container); err != nil {
		t.Error(err)
	}
	return true
}
