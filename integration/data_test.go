package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// dataDir is where the program keeps data without --data. A world has a tmpfs
// there.
const dataDir = "/var/lib/sandbox-runtime"

// reserveData makes the directory that a world mounts its own over, if the host
// has none, and has it stay until release. That removes it if it is empty and
// no other world needs it: a directory that is removed takes with it what is
// mounted there elsewhere.
func reserveData() (release func() error, err error) {
	for {
		if err := os.Mkdir(dataDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		held, err := os.OpenFile(dataDir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(held.Fd()), unix.LOCK_SH); err != nil {
			return nil, fmt.Errorf("lock %s: %w", dataDir, errors.Join(err, held.Close()))
		}
		mine, err := held.Stat()
		if err != nil {
			return nil, errors.Join(err, held.Close())
		}
		if named, err := os.Lstat(dataDir); err == nil && os.SameFile(mine, named) {
			return func() error { return releaseData(held) }, nil
		}
		held.Close() // removed before it was locked
	}
}

func releaseData(held *os.File) error {
	defer held.Close()
	err := unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) { // another world
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", dataDir, err)
	}
	err = os.Remove(dataDir)
	if errors.Is(err, unix.ENOTEMPTY) { // the host's own
		return nil
	}
	return err
}

// Once the host's disk was full under a sandbox, its file system may have had to
// become read-only: up says so, save refuses, and files can be read one by one.
func TestUpNamesASandboxThatCanOnlyBeRead(t *testing.T) {
	s := newSandboxes(t)
	data, tree := filepath.Join(t.TempDir(), "data"), t.TempDir()
	smallDisk(t, data, "size=48m")
	sb := func(args ...string) result { return run(t, s.command(append([]string{"--data", data}, args...)...)) }
	if got := sb("up", "--storage", "disk", "--disk", "32m", "--overlay", tree, "box"); got.code != 0 {
		t.Fatalf("up: %s", answered(got))
	}
	if got := sb("exec", "box", "sh", "-c", "echo kept > "+tree+"/file; sync"); got.code != 0 {
		t.Fatalf("exec: %s", answered(got))
	}
	if got := sb("up", "box"); got.code != 0 {
		t.Fatalf("up again: %s", answered(got))
	}
	fill(t, data)
	// Until the journal has no room either.
	got := sb("exec", "--timeout", "60s", "box", "sh", "-c", "i=0; while mkdir -p $i/$i; do i=$((i+1)); [ $((i % 100)) != 0 ] || sync; done")
	if !strings.Contains(got.stderr, "Read-only") {
		t.Fatalf("exec on a full disk: %s", answered(got))
	}
	for range 2 {
		got := sb("up", "box")
		if got.code != 1 || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, "sandbox box: has a disk that became read-only") || !strings.Contains(got.stderr, "below "+data) {
			t.Errorf("up: %s", answered(got))
		}
	}
	saved := filepath.Join(t.TempDir(), "saved.patch")
	if got := sb("save", "box", saved); got.code != 1 || !strings.Contains(got.stderr, "cannot be trusted") || exists(saved) {
		t.Errorf("save: %s", answered(got))
	}
	if got := sb("exec", "box", "cat", tree+"/file"); got.code != 0 || got.stdout != "kept\n" {
		t.Errorf("one file by hand: %s", answered(got))
	}
	if got := sb("down", "box"); got != (result{}) {
		t.Errorf("down: %s", answered(got))
	}
	os.Remove(filepath.Join(data, "filling"))
	removeLasting(t, data)
}
