package integration

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// fillExt4 takes the last block of a disk.
func fillExt4(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "filling"), unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_SYNC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 4 << 20; size >= 1<<10; size /= 4 {
		for err = nil; err == nil; {
			_, err = f.Write(bytes.Repeat([]byte{1}, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}

func emptyExt4(t *testing.T, dir string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, "filling")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// A lossyDisk is a sandbox with an overlay whose data directory is on a small disk.
type lossyDisk struct {
	*sandboxes
	disk, tree string
}

func newLossyDisk(t *testing.T) *lossyDisk {
	t.Helper()
	s := &lossyDisk{sandboxes: newSandboxes(t), disk: filepath.Join(t.TempDir(), "disk"), tree: t.TempDir()}
	newFileSystem(t, "ext4", s.disk, 200)
	return s
}

func (s *lossyDisk) run(args ...string) result {
	s.t.Helper()
	return run(s.t, s.command(append([]string{"--data", filepath.Join(s.disk, "data")}, args...)...))
}

func (s *lossyDisk) begin() {
	s.t.Helper()
	if got := s.run("up", "--storage", "disk", "--disk", "100m", "--overlay", s.tree, "box"); got.code != 0 {
		s.t.Fatalf("up: %s", answered(got))
	}
}

func (s *lossyDisk) end() {
	s.t.Helper()
	if got := s.run("down", "box"); got.code != 0 {
		s.t.Errorf("down: %s", answered(got))
	}
}

// contentOf is the content that the sandbox writes to a file: no zeros.
func contentOf(name string, size int) []byte {
	return bytes.Repeat([]byte(name+"\n"), size/(len(name)+1))
}

// write has the sandbox write a file of 1 to 4 MiB, and tells its size.
func (s *lossyDisk) write(name string) (size int, told result) {
	s.t.Helper()
	size = (1 + rand.N(4)) << 20
	count := size / (len(name) + 1)
	return size, s.run("exec", "--timeout", "60s", "box", "sh", "-c", `yes "$1" | head -n "$2" > "$3"`, "sh", name, fmt.Sprint(count), filepath.Join(s.tree, name))
}

// dropCaches has the host forget the content of files that the disk has. Names stay: the
// overlays of other tests would look at their host's directories again.
func dropCaches(t *testing.T) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0); err != nil {
		t.Logf("drop_caches: %v", err)
	}
}

func checkUntrusted(t testing.TB, what string, got result) {
	t.Helper()
	if !strings.Contains(got.stderr, "files that cannot be trusted") || !strings.Contains(got.stderr, "down") {
		t.Errorf("%s: %s", what, answered(got))
	}
}

// The disk is full when the sandbox writes, and has room when others look.
func TestLostWritesAreNeitherAppliedNorSaved(t *testing.T) {
	s := newLossyDisk(t)
	if err := os.WriteFile(filepath.Join(s.tree, "old"), []byte("host"), 0o666); err != nil {
		t.Fatal(err)
	}
	s.begin()
	defer s.end()
	fillExt4(t, s.disk)
	_, got := s.write("lost")
	checkUntrusted(t, "the write", got)
	// Five seconds after the start ext4 writes its journal, and makes the image read-only if that fails.
	if got.code != 0 && !strings.Contains(got.stderr, "Read-only file system") {
		t.Errorf("the write: %s", answered(got))
	}
	dropCaches(t)
	emptyExt4(t, s.disk)
	got = s.run("exec", "box", "sh", "-c", "exit 3")
	checkUntrusted(t, "exec", got)
	if got.code != 3 {
		t.Errorf("exec: %s", answered(got))
	}
	if got := s.run("exec", "--json", "box", "true"); got.code != 0 || !strings.Contains(got.stdout, `"damaged":true`) || !strings.Contains(got.stdout, `{"kind":"limit","detail":"the sandbox has files that cannot be trusted`) {
		t.Errorf("exec --json: %s", answered(got))
	}
	saved := filepath.Join(t.TempDir(), "saved")
	for _, args := range [][]string{
		{"changes", "box"}, {"diff", "box"}, {"apply", "--dry-run", "box"}, {"apply", "--yes", "box"}, {"snapshot", "box", "snap"},
		{"save", "box", saved + ".tar"}, {"save", "box", saved + ".patch"},
	} {
		got := s.run(args...)
		checkUntrusted(t, args[0], got)
		if got.code != 1 {
			t.Errorf("%s: %s", args, answered(got))
		}
	}
	if names, err := filepath.Glob(filepath.Join(filepath.Dir(saved), "*")); err != nil || len(names) > 0 {
		t.Errorf("saved: %q, %v", names, err)
	}
	if names, err := filepath.Glob(filepath.Join(s.tree, "*")); err != nil || len(names) != 1 {
		t.Errorf("applied: %q, %v", names, err)
	}
}

// The disk is full at any moment, and not any more at another.
func TestNoLostWriteReachesTheHost(t *testing.T) {
	testhost.Long(t)
	s := newLossyDisk(t)
	refused := 0
	for round := range 8 {
		s.begin()
		sizes, full := map[string]int{}, false
		for step := range 6 {
			switch rand.N(3) {
			case 0:
				if full = !full; full {
					fillExt4(t, s.disk)
				} else {
					emptyExt4(t, s.disk)
				}
			case 1:
				name := fmt.Sprintf("file-%d-%d", round, step)
				if size, got := s.write(name); got.code == 0 {
					sizes[name] = size
				}
			case 2:
				s.run("exec", "box", "sync", "-f", s.tree)
				dropCaches(t)
			}
		}
		filling := rand.N(2) == 0
		done := make(chan bool)
		if filling && !full { // while others look
			go func() {
				defer close(done)
				time.Sleep(rand.N(200 * time.Millisecond))
				fillExt4(t, s.disk)
			}()
		} else {
			emptyExt4(t, s.disk)
			close(done)
		}
		if !s.checkRead(round, sizes) {
			refused++
		}
		<-done
		emptyExt4(t, s.disk)
		s.end()
	}
	t.Logf("%d of 8 were refused", refused)
}

// checkRead saves and applies, and says whether both were done. What was done must be
// what was written.
func (s *lossyDisk) checkRead(round int, sizes map[string]int) bool {
	s.t.Helper()
	archive := filepath.Join(s.t.TempDir(), fmt.Sprintf("%d.tar", round))
	saved, applied := s.run("save", "box", archive), s.run("apply", "--yes", "box")
	if saved.code == 0 {
		checkArchive(s.t, archive, sizes)
	} else {
		checkUntrusted(s.t, "save", saved)
	}
	if applied.code == 0 {
		for name, size := range sizes {
			text, err := os.ReadFile(filepath.Join(s.tree, name))
			checkContent(s.t, "applied", name, text, err, size)
		}
	} else {
		checkUntrusted(s.t, "apply", applied)
	}
	return saved.code == 0 && applied.code == 0
}

func checkContent(t testing.TB, what, name string, text []byte, err error, size int) {
	t.Helper()
	if want := contentOf(name, size); err != nil || !bytes.Equal(text, want) {
		t.Errorf("%s: %s has %d bytes, %d of them zeros, and should have %d; %v", what, name, len(text), bytes.Count(text, []byte{0}), len(want), err)
	}
}

func checkArchive(t testing.TB, archive string, sizes map[string]int) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen := 0
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if size, ok := sizes[header.Name]; ok {
			seen++
			text, err := io.ReadAll(r)
			checkContent(t, "saved", header.Name, text, err, size)
		}
	}
	if seen != len(sizes) {
		t.Errorf("%d files of %d are in the archive", seen, len(sizes))
	}
}

// writeMany is a command that writes files of 8 MiB together.
func (s *lossyDisk) writeMany() []string {
	return []string{"box", "sh", "-c", "for i in $(seq 400); do head -c 20k /dev/urandom > " + s.tree + "/many-$i; done"}
}

// turnReadOnly fills the disk until the file system of the sandbox loses writes. No command may look at the
// sandbox meanwhile: the command would finish a transaction. So its first process is given.
func (s *lossyDisk) turnReadOnly(t *testing.T, first int) {
	t.Helper()
	fillExt4(t, s.disk)
	f, err := os.Create(filepath.Join("/proc", fmt.Sprint(first), "root", s.tree, "late"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = f.Write(bytes.Repeat([]byte("late\n"), 1<<20))
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		t.Error("a full disk takes a write")
	}
	emptyExt4(t, s.disk)
}

// checkCopiedOut copies a file out of a damaged sandbox.
func (s *lossyDisk) checkCopiedOut(at string) {
	s.t.Helper()
	got := s.run("exec", "--timeout", "20s", "box", "cat", filepath.Join(s.tree, "early"))
	checkUntrusted(s.t, at, got)
	if got.code != 0 || got.stdout != "early\n" {
		s.t.Errorf("%s: %s", at, answered(got))
	}
	got = s.run("changes", "box")
	checkUntrusted(s.t, at, got)
	if !strings.Contains(got.stdout, "/early") {
		s.t.Errorf("%s: %s", at, answered(got))
	}
}

// The disk fails during a transaction. Files can be copied out afterwards, also if the transaction was killed while it
// joined the sandbox's files.
func TestFilesAreCopiedOutAfterATransactionOnAFailedDisk(t *testing.T) {
	testhost.Long(t)
	s := newLossyDisk(t)
	early := []string{"exec", "box", "sh", "-c", "echo early > " + s.tree + "/early; sync " + s.tree + "/early"}
	transaction := append([]string{"--data", filepath.Join(s.disk, "data"), "exec", "--transaction"}, s.writeMany()...)
	points := 0
	for _, part := range []int{0, 60, 90} { // per cent of the failpoints
		s.begin()
		first := s.pid("box")
		if got := s.run(early...); got.code != 0 {
			t.Fatal(answered(got))
		}
		trace, err := failpoint.Run(s.command(transaction...), points*part/100, patience)
		if err != nil {
			t.Fatal(err)
		}
		if part == 0 {
			points = len(trace.Points)
		} else {
			s.turnReadOnly(t, first)
			s.checkCopiedOut(fmt.Sprintf("killed at failpoint %d of %d", points*part/100, points))
		}
		s.end()
	}
	s.begin()
	defer s.end()
	if got := s.run(early...); got.code != 0 {
		t.Fatal(answered(got))
	}
	fillExt4(t, s.disk)
	got := s.run(transaction[2:]...)
	if got.code == 0 {
		t.Errorf("transaction: %s", answered(got))
	}
	emptyExt4(t, s.disk)
	s.checkCopiedOut("a transaction on a full disk")
}

// down needs no room.
func TestDownFreesAFullDisk(t *testing.T) {
	s := newLossyDisk(t)
	s.begin()
	if got := s.run("exec", "box", "sh", "-c", "head -c 30m /dev/urandom > "+s.tree+"/file; sync"); got.code != 0 {
		t.Fatalf("exec: %s", answered(got))
	}
	fillExt4(t, s.disk)
	for i := range 5000 { // and all names that there is room for
		if err := os.WriteFile(filepath.Join(s.disk, fmt.Sprint("name-", i)), nil, 0o600); errors.Is(err, unix.ENOSPC) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	s.end()
	var st unix.Statfs_t
	if err := unix.Statfs(s.disk, &st); err != nil || int64(st.Bavail)*st.Bsize < 25<<20 {
		t.Errorf("%d bytes are free, %v", int64(st.Bavail)*st.Bsize, err)
	}
	emptyExt4(t, s.disk)
	s.begin()
	s.end()
}

// A review of a damaged sandbox discards nothing.
func TestReviewOfLostWritesKeepsTheSandbox(t *testing.T) {
	s := newLossyDisk(t)
	cmd := s.command("--data", filepath.Join(s.disk, "data"), "do", "--interactive", "--review", "--storage", "disk", "--disk", "100m", "--overlay", s.tree, "--",
		"sh", "-c", "echo up; read line; yes lost | head -c 4m > "+s.tree+"/lost")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	cmd.Stderr = &told
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("up\n"))); err != nil {
		t.Error(err)
	}
	fillExt4(t, s.disk)
	if _, err := io.WriteString(in, "go\n"); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("status 0")
	}
	_, rest, stays := strings.Cut(told.String(), "the sandbox stays up as ")
	name, _, _ := strings.Cut(rest, " ")
	if !stays || !strings.Contains(told.String(), "cannot be trusted") {
		t.Fatalf("told: %s", told.String())
	}
	if got := s.run("exec", name, "ls", s.tree); got.code != 0 || got.stdout != "lost\n" {
		t.Errorf("exec: %s", answered(got))
	}
	if got := s.run("down", name); got.code != 0 {
		t.Errorf("down: %s", answered(got))
	}
}
