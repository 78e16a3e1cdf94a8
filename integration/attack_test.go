package integration

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	ocibundle "github.com/sandbox-runtime/sandbox-runtime/integration/internal/bundle"
)

// The tests in attack_* each perform an attack that some runtime fell to, and
// look at the host. Where it can be done they perform it once more with the
// wall in question taken away, and then it must succeed: an attack that never
// works proves nothing.

// attackRoot is a busybox root with testdata/attack.c as /bin/attack, made once
// for all tests. Whoever writes into it makes a copy (newAttackRoot).
var attackRoot = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "attack")
	if err != nil {
		return "", err
	}
	return dir, makeAttackRoot(dir)
})

func makeAttackRoot(dir string) error {
	program, err := attackProgram()
	if err != nil {
		return err
	}
	if err := ocibundle.MakeRoot(dir, peer("bin/busybox")); err != nil {
		return err
	}
	return ocibundle.CopyProgram(program, filepath.Join(dir, "bin/attack"))
}

var attackProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "attack")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "attack")
	out, err := exec.Command("cc", "-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/reach.c", "testdata/attack.c").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile testdata/attack.c: %w: %s", err, out)
	}
	return path, nil
})

// newAttackRoot is one of the test's own, to be changed.
func newAttackRoot(t testing.TB) string {
	t.Helper()
	need(t, peers())
	dir := filepath.Join(t.TempDir(), "rootfs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := makeAttackRoot(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// sharedAttackRoot is attackRoot for a test.
func sharedAttackRoot(t testing.TB) string {
	t.Helper()
	need(t, peers())
	dir, err := attackRoot()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// newAttack writes a bundle as Docker does that runs args in attackRoot.
func newAttack(t testing.TB, args []string, changes ...func(*specs.Spec)) *bundle {
	t.Helper()
	root := sharedAttackRoot(t)
	return newBundle(t, args, append([]func(*specs.Spec){func(s *specs.Spec) { s.Root.Path = root }}, changes...)...)
}

// withRoot is a change to a bundle: another root, writable as Docker's are.
func withRoot(dir string) func(*specs.Spec) {
	return func(s *specs.Spec) { s.Root = &specs.Root{Path: dir} }
}

// readOnlyRoot keeps the container from changing its own files.
func readOnlyRoot(s *specs.Spec) { s.Root.Readonly = true }

// withCapabilities adds some.
func withCapabilities(names ...string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		c := s.Process.Capabilities
		c.Bounding = append(slices.Clone(c.Bounding), names...)
		c.Effective, c.Permitted = c.Bounding, c.Bounding
	}
}

// withMount adds one, after those Docker has.
func withMount(m specs.Mount) func(*specs.Spec) {
	return func(s *specs.Spec) { s.Mounts = append(s.Mounts, m) }
}

// withVolume shows a directory as Docker's --volume does.
func withVolume(source, destination string) func(*specs.Spec) {
	return withMount(specs.Mount{Source: source, Destination: destination, Type: "bind", Options: []string{"rbind", "rprivate"}})
}

// withoutMount takes one away.
func withoutMount(destination string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == destination })
	}
}

// withoutNamespace takes one away.
func withoutNamespace(kind specs.LinuxNamespaceType) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
	}
}

// withFilter puts the seccomp profile on that do has: Docker's, and less.
func withFilter(t testing.TB) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Linux.Seccomp = &specs.LinuxSeccomp{}
		decode(t, content(t, "../seccomp/testdata/default.json"), s.Linux.Seccomp)
	}
}

// runBundle runs a bundle to its end, whatever that is.
func (r *ociRuntime) runBundle(b *bundle) result {
	r.t.Helper()
	return run(r.t, r.command("run", "--bundle", b.dir, "attack"))
}

// sumOf is a file's content as a short text.
func sumOf(t testing.TB, path string) string {
	t.Helper()
	return fmt.Sprintf("%x", sha256.Sum256([]byte(content(t, path))))
}

// unchanged fails the test at its end if a file of the host has changed by then.
func unchanged(t testing.TB, paths ...string) {
	t.Helper()
	for _, path := range paths {
		before := sumOf(t, path)
		t.Cleanup(func() {
			if after := sumOf(t, path); after != before {
				t.Errorf("%s on the host was written to", path)
			}
		})
	}
}

// canary makes a file on the host with a text that is nowhere else.
func canary(t testing.TB) (path, text string) {
	t.Helper()
	path, text = filepath.Join(t.TempDir(), "canary"), "canary of "+t.Name()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path, text
}

// tree lists what lies in a directory of the host, with kinds and sizes.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && path != dir {
			fmt.Fprintf(&b, "%s %v %d\n", strings.TrimPrefix(path, dir), info.Mode(), info.Size())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// swapping exchanges two paths as fast as it can (renameat2(2),
// RENAME_EXCHANGE) until stop, which leaves them as they were and fails the
// test if they never could be exchanged.
func swapping(t testing.TB, a, b string) (stop func()) {
	t.Helper()
	exchange := func() error { return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) }
	quit, done := make(chan struct{}), make(chan struct{})
	swaps := 0
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
			}
			if exchange() == nil { // what is mounted on cannot be moved for the moment
				swaps++
			}
			// At all paces: what is raced has come far by some of the swaps.
			if time.Now().UnixMilli()/10%2 == 0 {
				time.Sleep(time.Duration(swaps%40) * 50 * time.Microsecond)
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		close(quit)
		<-done
		if swaps == 0 {
			t.Errorf("%s and %s were never exchanged", a, b)
		}
		if swaps%2 == 1 {
			if err := exchange(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(stop)
	return stop
}

// attempts repeats a race, at least five times and for about as long as it says.
func attempts(d time.Duration, try func()) {
	for n, end := 0, time.Now().Add(d); n < 5 || n < 200 && time.Now().Before(end); n++ {
		try()
	}
}
