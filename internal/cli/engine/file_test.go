package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestEditKeepsModeOwnerAttributesAndSymlinks(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := os.WriteFile(target, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("target", link); err != nil {
		t.Fatal(err)
	}
	owner := os.Getuid()
	if owner == 0 {
		owner = 1234
		if err := os.Chown(target, owner, 4321); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(target, 0o440); err != nil { // also of use: a file that forbids writing
		t.Fatal(err)
	}
	attribute := unix.Setxattr(target, "user.mark", []byte("m"), 0)
	if attribute != nil && attribute != unix.ENOTSUP && attribute != unix.EACCES {
		t.Fatal(attribute)
	}
	before, after, err := Edit(link, func(old []byte) ([]byte, error) { return append(old, " and new"...), nil })
	if err != nil || string(before) != "old" || string(after) != "old and new" {
		t.Fatalf("%q, %q, %v", before, after, err)
	}
	if to, err := os.Readlink(link); err != nil || to != "target" {
		t.Errorf("the link: %q, %v", to, err)
	}
	if got := contentOf(t, target); got != "old and new" {
		t.Errorf("content %q", got)
	}
	var stat unix.Stat_t
	if err := unix.Stat(target, &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Mode&0o7777 != 0o440 || int(stat.Uid) != owner {
		t.Errorf("mode %o, uid %d", stat.Mode, stat.Uid)
	}
	value := make([]byte, 8)
	if n, err := unix.Getxattr(target, "user.mark", value); attribute == nil && (err != nil || string(value[:n]) != "m") {
		t.Errorf("attribute %q, %v", value[:max(n, 0)], err)
	}
	wantFiles(t, dir, "link", "target")
}

func TestEditMakesAndRemoves(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a/b/c.conf")
	if _, _, err := Edit(file, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, dir) // nothing to write, no folder
	if _, _, err := Edit(file, func([]byte) ([]byte, error) { return []byte("x"), nil }); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o644 {
		t.Fatalf("%v, %v", info, err)
	}
	if _, _, err := Edit(file, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, filepath.Dir(file))
}

func TestEditLeavesALinksTargetThere(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(target, []byte("x"), 0o600), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Edit(link, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if got := contentOf(t, target); got != "" {
		t.Errorf("content %q", got)
	}
	if err := os.WriteFile(target, []byte(`{"runtimes":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Edit(link, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if got := contentOf(t, target); got != "{}\n" {
		t.Errorf("JSON's content %q", got)
	}
}

func TestEditRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(file, []byte("x"), 0o600), os.Mkdir(filepath.Join(dir, "dir"), 0o700),
		os.Symlink("nowhere", filepath.Join(dir, "dangling")), os.Symlink("loop", filepath.Join(dir, "loop")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	change := func([]byte) ([]byte, error) { return []byte("y"), nil }
	for name, words := range map[string]string{
		"dir": "is not a regular file", "fifo": "is not a regular file", "dangling": "is a symlink to nowhere, which is not there",
		"loop": "too many links", "file/below": "not a directory",
	} {
		path := filepath.Join(dir, name)
		if _, _, err := Edit(path, change); err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want %q", name, err, words)
		}
	}
	why := errors.New("why")
	if _, _, err := Edit(file, func([]byte) ([]byte, error) { return []byte("y"), why }); err != why {
		t.Error(err)
	}
	_, _, err := Edit(file, func([]byte) ([]byte, error) { return []byte("y"), os.WriteFile(file, []byte("theirs"), 0o600) })
	if err == nil || !strings.Contains(err.Error(), "somebody else") || contentOf(t, file) != "theirs" {
		t.Errorf("%v, %q", err, contentOf(t, file))
	}
	wantFiles(t, dir, "dangling", "dir", "fifo", "file", "loop")
}

func TestEditWhereNothingMayBeWritten(t *testing.T) {
	file := "/proc/self/environ" // a folder where no file can be made, for root either
	_, _, err := Edit(file, func([]byte) ([]byte, error) { return []byte("x"), nil })
	if err == nil || !strings.Contains(err.Error(), "/environ") {
		t.Error(err)
	}
}

// Two edits at a time: neither is lost.
func TestEditsAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "daemon.json")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			r := Runtime{Name: fmt.Sprint("sandbox-", i), Path: sandbox.Path}
			if _, _, err := Edit(file, func(old []byte) ([]byte, error) { return Docker{}.Add(old, r) }); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := strings.Count(contentOf(t, file), "\"path\""); n != 20 {
		t.Errorf("%d of 20 are there:\n%s", n, contentOf(t, file))
	}
	wantFiles(t, filepath.Dir(file), "daemon.json")
}

func TestPathsThatDoNotLast(t *testing.T) {
	for path, lasts := range map[string]bool{
		"/usr/local/bin/sandbox-runtime": true, "/opt/x": true, "/home/me/bin/x": true, "/tmpfs/x": true, "/runtime": true,
		"/tmp/x": false, "/tmp/go-build1/x": false, "/var/tmp/x": false, "/run/x": false, "/dev/shm/x": false, "/proc/1/root/x": false,
	} {
		err := Lasting(path)
		if (err == nil) != lasts {
			t.Errorf("%s: %v", path, err)
		}
		if err != nil && !strings.Contains(err.Error(), "install -m 755 "+path+" /usr/local/bin/sandbox-runtime") {
			t.Errorf("no way out: %v", err)
		}
	}
}

func TestWhoCanChangeTheBinary(t *testing.T) {
	testhost.NeedRoot(t, "files of others")
	dir := t.TempDir() // in /tmp, which is sticky
	path := filepath.Join(dir, "program")
	steps := []struct {
		prepare func() error
		words   string
	}{
		{func() error { return os.WriteFile(path, nil, 0o755) }, ""},
		{func() error { return os.Chmod(path, 0o775) }, ""}, // gid 0
		{func() error { return os.Chown(path, 0, 50) }, "gid 50, which may write to " + path},
		{func() error { return os.Chmod(path, 0o757) }, "everybody, since " + path + " is writable by all"},
		{func() error { return errors.Join(os.Chmod(path, 0o755), os.Chown(path, 7, 0)) }, "uid 7, the owner of " + path},
		{func() error { return errors.Join(os.Chown(path, 0, 0), os.Chmod(dir, 0o777)) }, "everybody, since " + dir + " is writable by all"},
		{func() error { return os.Chmod(dir, 0o777|fs.ModeSticky) }, ""},
		{func() error { return os.Chown(dir, 7, 0) }, "uid 7, the owner of " + dir},
	}
	for i, step := range steps {
		if err := step.prepare(); err != nil {
			t.Fatal(err)
		}
		if got, err := Exposed(path); err != nil || got != step.words {
			t.Errorf("step %d: %q, %v; want %q", i, got, err, step.words)
		}
	}
}

func contentOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func wantFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("files %q, want %q", names, want)
	}
}

// A process that was killed has left its new file. An editor's file stays.
func TestEditRemovesTheRestOfAKilledProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "daemon.json")
	for _, name := range []string{draftName(file) + "123", ".daemon.json.swp"} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := Edit(file, func(b []byte) ([]byte, error) { return b, nil }); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, filepath.Dir(file), ".daemon.json.swp")
}
