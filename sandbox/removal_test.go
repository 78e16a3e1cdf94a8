package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// manyFiles makes files of all sorts in an overlay: small, sparse and large ones.
const manyFiles = `mkdir d e; for i in $(seq 300); do echo $i > d/$i; done; echo changed > given
	truncate -s 8m e/sparse; printf data | dd of=e/sparse bs=1 seek=5000000 conv=notrunc 2>/dev/null
	head -c 3000000 /dev/urandom > e/large; seq 100000 > e/text; truncate -s 9m e/holes`

// sumFiles prints a hash of all files of a directory, inside and on the host alike.
const sumFiles = `find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum`

func sumOnHost(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", sumFiles)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// A changeReader reads the changes of a sandbox, and returns the result: the bytes, or the
// state of the directory.
type changeReader func(t *testing.T, c *sandbox.Changes, dir string) (string, error)

func readings() map[string]changeReader {
	return map[string]changeReader{
		"tar": func(_ *testing.T, c *sandbox.Changes, _ string) (string, error) {
			var all bytes.Buffer
			_, err := c.Save(&all)
			return all.String(), err
		},
		"patch": func(_ *testing.T, c *sandbox.Changes, _ string) (string, error) {
			var all bytes.Buffer
			err := c.Diff(&all)
			return all.String(), err
		},
		"apply": func(t *testing.T, c *sandbox.Changes, dir string) (string, error) {
			_, err := c.Apply(t.Context(), sandbox.ApplyOptions{})
			return sumOnHost(t, dir), err
		},
	}
}

// A removal cancels a reader of the changes, or comes too late. The reader gets an error
// or all of the content, never a part.
func TestRemovalLeavesNothingHalfRead(t *testing.T) {
	testhost.Concurrent(t)
	m := newIsolated(t)
	const rounds = 2
	for _, k := range []kind{{storage: sandbox.StorageDisk}, {storage: sandbox.StorageDisk, stopped: true}, {storage: sandbox.StorageMemory}} {
		for what, read := range readings() {
			t.Run(fmt.Sprintf("%s %+v", what, k), func(t *testing.T) {
				for round := range rounds {
					wait := time.Duration(0)
					if round > 0 {
						wait = rand.N(200 * time.Millisecond)
					}
					k.removeWhileRead(t, m, what, read, wait)
				}
			})
		}
	}
}

// A kind is one of the sandboxes that are removed. The PID 1 of a stopped sandbox was
// killed before.
type kind struct {
	storage sandbox.Storage
	stopped bool
}

func (k kind) removeWhileRead(t *testing.T, m *sandbox.Manager, what string, read changeReader, wait time.Duration) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "given"), []byte("given\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := sumOnHost(t, dir)
	sb := create(t, m, sandbox.Config{Overlays: []string{dir}, Storage: k.storage, Cwd: dir})
	r, err := sb.Run(t.Context(), manyFiles+"; "+sumFiles)
	if err != nil || !r.OK() {
		t.Fatalf("%+v, %v", r, err)
	}
	if k.stopped {
		stop(t, sb)
	}
	c, err := sb.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	whole := string(r.Stdout)
	if what != "apply" {
		if whole, err = read(t, c, dir); err != nil {
			t.Fatal(err)
		}
	}
	removed := make(chan error)
	go func() {
		time.Sleep(wait)
		removed <- m.Remove(t.Context(), sb.ID())
	}()
	got, err := read(t, c, dir)
	if err := <-removed; err != nil {
		t.Fatal(err)
	}
	switch {
	case err == nil && got != whole:
		t.Errorf("after %v: there is no error, and %d bytes in place of %d", wait, len(got), len(whole))
	case err != nil && (!errors.Is(err, sandbox.ErrNotFound) || strings.Contains(err.Error(), "\n")):
		t.Errorf("after %v: %v", wait, err)
	case err != nil && sumOnHost(t, dir) != before:
		t.Errorf("after %v: %v, and the directory has changed", wait, err)
	}
}

// Changes in memory are not those of a later sandbox with the name.
func TestChangesOfAReplacedSandboxAreNotApplied(t *testing.T) {
	m := newIsolated(t)
	dir := t.TempDir()
	c := sandbox.Config{Overlays: []string{dir}, Storage: sandbox.StorageMemory, Cwd: dir}
	name := fmt.Sprintf("replaced-%d", os.Getpid())
	sb, err := m.Up(t.Context(), name, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Remove(context.Background(), name) })
	if r, err := sb.Run(t.Context(), "echo old > file"); err != nil || !r.OK() {
		t.Fatalf("%+v, %v", r, err)
	}
	changes, err := sb.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Close()
	if err := m.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Up(t.Context(), name, c); err != nil {
		t.Fatal(err)
	}
	for what, read := range readings() {
		if _, err := read(t, changes, dir); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "file")); err == nil {
		t.Error("changes of the old sandbox were applied")
	}
}

// stop kills the PID 1 of a sandbox.
func stop(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	info, err := sb.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(info.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testhost.Eventually(t, "the sandbox has stopped", func() bool {
		_, err := sb.Exec(t.Context(), command("true"))
		return errors.Is(err, sandbox.ErrNotRunning)
	})
}
