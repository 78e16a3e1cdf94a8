// Package testhost helps tests that use the host they run on: they leave nothing behind,
// and mount in namespaces of their own. It is for tests only.
package testhost

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Run runs a package's tests and returns the status to exit with. They leave no
// descriptor behind.
func Run(m *testing.M) int {
	before := Descriptors()
	code := m.Run()
	if after := Descriptors(); len(after) > len(before) {
		fmt.Fprintf(os.Stderr, "descriptors before the tests: %q\nafter: %q\n", before, after)
		code = max(code, 1)
	}
	return code
}

// RunMounting is Run for tests that make mounts, and leave none of these either. The tests get a
// temporary directory of their own: tests of other packages mount in the host's meanwhile.
func RunMounting(m *testing.M) int {
	runtime.LockOSThread() // keeps one thread in the host's namespace
	own, err := os.MkdirTemp("", "m")
	if err == nil {
		err = os.Chmod(own, 0o1777) // as the host's: sandboxes' users pass here
	}
	if err == nil {
		err = os.Setenv("TMPDIR", own)
	}
	if err != nil {
		panic(err)
	}
	code := Run(m)
	if left := mountsBelow(own); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "mounts are left at %q\n", left)
		return max(code, 1)
	}
	if err := os.RemoveAll(own); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// mountsBelow are the mount points in a directory.
func mountsBelow(dir string) (found []string) {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(text)) {
		at := strings.Fields(line)[4] // proc_pid_mountinfo(5)
		if strings.HasPrefix(at, dir+"/") {
			found = append(found, at)
		}
	}
	return found
}

// RunServing is Run for tests with work in the background: its rest has some time to end,
// and goroutines count, too.
func RunServing(m *testing.M) int {
	before := len(Descriptors())
	// The fuzzing engine handles interrupts in a goroutine that stays to the end.
	signal.Notify(make(chan os.Signal, 1), unix.SIGWINCH)
	goroutines := runtime.NumGoroutine()
	code := m.Run()
	ended := func() bool { return len(Descriptors()) <= before && runtime.NumGoroutine() <= goroutines }
	if code == 0 && !comes(ended) {
		fmt.Fprintf(os.Stderr, "left behind: descriptors %d, were %d; goroutines %d, were %d\n",
			len(Descriptors()), before, runtime.NumGoroutine(), goroutines)
		stacks := make([]byte, 1<<16)
		fmt.Fprintf(os.Stderr, "%s\n", stacks[:runtime.Stack(stacks, true)])
		code = 1
	}
	return code
}

// Descriptors are the open descriptors of this process, with their files. The Go runtime's
// own are left out: its epoll and event descriptors.
func Descriptors() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	var open []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(target, "anon_inode:[event") {
			open = append(open, e.Name()+" "+target)
		}
	}
	return open
}

// CloseAfter closes something when the test ends, which has to work.
func CloseAfter(t testing.TB, c io.Closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// OpenNull opens /dev/null n times until the test ends.
func OpenNull(t testing.TB, n int) []int {
	t.Helper()
	var fds []int
	for range n {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		fds = append(fds, int(f.Fd()))
	}
	return fds
}

// WriteFile writes a file, and makes its directory.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Symlink makes a symbolic link.
func Symlink(t testing.TB, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

// Script writes a shell script, and makes its directory.
func Script(t testing.TB, path, text string) {
	t.Helper()
	WriteFile(t, path, "#!/bin/sh\n"+text)
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// Python makes an installation of Python in dir, with a python3 that prints "python". It
// returns dir.
func Python(t testing.TB, dir string) string {
	t.Helper()
	Script(t, dir+"/bin/python3.12", "echo python\n")
	Symlink(t, "python3.12", dir+"/bin/python3")
	WriteFile(t, dir+"/lib/python3.12/os.py", "")
	return dir
}

// NeedRoot skips a test of an ordinary user's that needs root for something.
func NeedRoot(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: " + what)
	}
}

// LinuxBefore says that the kernel is older than this release, as the reason to
// skip a test; it is empty where it is not.
func LinuxBefore(t testing.TB, major, minor int) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var gotMajor, gotMinor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &gotMajor, &gotMinor); err != nil {
		t.Fatal(err)
	}
	if gotMajor > major || gotMajor == major && gotMinor >= minor {
		return ""
	}
	return fmt.Sprintf("needs Linux %d.%d, this is %d.%d", major, minor, gotMajor, gotMinor)
}

// PrivateMounts moves the test's thread into a mount namespace of its own, which
// ends with the test. It skips where mounts cannot be made.
func PrivateMounts(t testing.TB) {
	t.Helper()
	NeedRoot(t, "mounts are made")
	runtime.LockOSThread() // never unlocked: the thread ends with the test's goroutine
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		t.Fatalf("unshare mount namespace: %v", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatalf("make mounts private: %v", err)
	}
}

// Patience is how long a test waits for an event that has to happen. Only a test that fails
// waits so long. Emulated and busy machines are slow: twenty containers that Docker starts at
// a time take half a minute on two busy cores.
const Patience = 2 * time.Minute

// Eventually waits until a condition holds.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !comes(holds) {
		t.Fatalf("not within %v: %s", Patience, what)
	}
}

func comes(holds func() bool) bool {
	for end := time.Now().Add(Patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// ThreadIDs are the ids and the capabilities of the calling thread.
func ThreadIDs(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if key, _, _ := strings.Cut(line, ":"); key == "Uid" || key == "Gid" || key == "Groups" || strings.HasPrefix(key, "Cap") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// Concurrent marks a test that starts goroutines. In the packages that the Makefile names in ALONE, the race detector runs
// the marked tests alone, since it makes the others too slow. A test of the repository demands the mark.
func Concurrent(t testing.TB) { t.Helper() }

// Long leaves a test that takes long to make test-all: it skips the test in a short run (go test -short).
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("left to make test-all")
	}
}
