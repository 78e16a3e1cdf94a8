package copying

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func TestTargets(t *testing.T) {
	dir, file := new(fs.ModeDir|0o755), new(fs.FileMode(0o644))
	for _, test := range []struct {
		source, target string
		isDir          bool
		there          *fs.FileMode
		want           string // empty: an error
	}{
		{"/a/file", "out", false, nil, "out"},
		{"/a/file", "out", false, file, "out"},
		{"/a/file", "out/", false, dir, "out/file"},
		{"/a/file", "out/", false, nil, ""},
		{"/a/file/.", "out", false, nil, ""},
		{"/a/dir", "out", true, nil, "out"},
		{"/a/dir/", "/", true, dir, "/dir"},
		{"/a/dir/.", "out", true, dir, "out"},
		{"..", "out", true, dir, "out"},
		{"/a/dir", "out", true, file, ""},
	} {
		got, err := targetOf(test.source, test.target, test.isDir, test.there)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s to %s: %q, %v; want %q", test.source, test.target, got, err, test.want)
		}
	}
}

func TestLinksThatStayWithin(t *testing.T) {
	for _, link := range []struct {
		inside, to string
		stays      bool
	}{
		{"l", "a", true},
		{"l", "./a/b", true},
		{"d/l", "../a", true},
		{"d/l", "..", true},
		{"d/e/l", "../../a", true},
		{"l", "..", false},
		{"d/l", "../../a", false},
		{"l", "./../a", false},
		{"l", "/etc/passwd", false},
		{"l", "", false},
		{"l", "d/up/../x", false}, // if d/up is a link to "..", that is out of the tree
	} {
		if got := staysWithin(link.inside, link.to); got != link.stays {
			t.Errorf("%s -> %s: %t", link.inside, link.to, got)
		}
	}
}

// A sandbox that makes a link first and a file of the same name later must not write through it.
func TestReplaceDoesNotFollowALink(t *testing.T) {
	dir := t.TempDir()
	outside, link := filepath.Join(dir, "outside"), filepath.Join(dir, "in", "link")
	for _, err := range []error{
		os.WriteFile(outside, []byte("old"), 0o600), os.Mkdir(filepath.Dir(link), 0o700), os.Symlink("../outside", link),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(filepath.Dir(link))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := replace(root, "link", func(name string) error { return root.WriteFile(name, []byte("new"), 0o600) }); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{outside: "old", link: "new"} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v", path, got, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(link)); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
	// A copy that is cut short leaves the old file, and nothing else.
	cut := func(name string) error {
		return errors.Join(root.WriteFile(name, []byte("ne"), 0o600), io.ErrUnexpectedEOF)
	}
	if err := replace(root, "link", cut); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut short: %v", err)
	}
	if got, err := os.ReadFile(link); err != nil || string(got) != "new" {
		t.Errorf("cut short: %q, %v", got, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(link)); err != nil || len(entries) != 1 {
		t.Errorf("cut short: left %v, %v", entries, err)
	}
	if err := root.Mkdir("dir", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := replace(root, "dir", cut); !errors.Is(err, sandbox.ErrNotRegular) {
		t.Errorf("a directory: %v", err)
	}
}

// A file of zeros that needs no disk in the sandbox needs none on the host.
func TestHolesStayHoles(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	hole := strings.Repeat("\x00", 8<<20)
	want := "begin" + hole + "middle" + hole + hole
	if err := copySparse(f, strings.NewReader(want)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(f.Name()); err != nil || string(got) != want {
		t.Errorf("the copy has %d bytes, %v, want %d", len(got), err, len(want))
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("the copy takes %d bytes, %v", st.Blocks*512, err)
	}
}
