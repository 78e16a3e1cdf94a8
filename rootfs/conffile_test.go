package rootfs

import (
	"crypto/md5" //nolint:gosec // the sums of dpkg
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/stamps"
)

// shownConffiles describes the view that a sandbox has of these files below a directory in the place of /etc.
func shownConffiles(t *testing.T, dir string, to *node, files []conffiles.File) string {
	t.Helper()
	p := &plan{root: newDir(), sources: sources{rules: &hostpaths.Rules{}}}
	t.Cleanup(p.close)
	etc, err := p.sources.open(dir)
	if err == nil {
		err = newEtcPlan(p, etc, to).takeConffiles(files)
	}
	if err != nil {
		t.Fatal(err)
	}
	return describe(to, "/")
}

// etcOfTest is an empty directory of root as /etc is.
func etcOfTest(t *testing.T) string {
	t.Helper()
	asRoot(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestConffilesAreFilesForEverybody(t *testing.T) {
	dir := etcOfTest(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	change := map[string]func(name string) error{
		"good":               func(string) error { return nil },
		"tool.d/good":        func(string) error { return nil },
		"mode-0600":          func(name string) error { return os.Chmod(name, 0o600) },
		"mode-0640":          func(name string) error { return os.Chmod(name, 0o640) },
		"mode-0755":          func(name string) error { return os.Chmod(name, 0o755) },
		"mode-0664":          func(name string) error { return os.Chmod(name, 0o664) },
		"mode-set-id":        func(name string) error { return unix.Chmod(name, 0o4644) },
		"owner":              func(name string) error { return os.Chown(name, 1234, 0) },
		"closed/file":        func(name string) error { return os.Chmod(filepath.Dir(name), 0o700) },
		"group/file":         func(name string) error { return os.Chmod(filepath.Dir(name), 0o775) },
		"all/file":           func(name string) error { return os.Chmod(filepath.Dir(name), 0o777) },
		"foreign/file":       func(name string) error { return os.Chown(filepath.Dir(name), 1234, 0) },
		"outer/inner/closed": func(name string) error { return os.Chmod(filepath.Dir(filepath.Dir(name)), 0o750) },
		"link":               func(name string) error { return errors.Join(os.Remove(name), os.Symlink("good", name)) },
		"to-dir/good": func(name string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(name)), os.Symlink("tool.d", filepath.Dir(name)))
		},
		"to-usr/env": func(name string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(name)), os.Symlink("/usr/bin", filepath.Dir(name)))
		},
		"fifo":      func(name string) error { return errors.Join(os.Remove(name), unix.Mkfifo(name, 0o644)) },
		"directory": func(name string) error { return errors.Join(os.Remove(name), os.Mkdir(name, 0o755)) },
		"large":     func(name string) error { return os.Truncate(name, mostConffileSize+1) },
		"gone":      os.Remove,
		"dir/gone":  func(name string) error { return os.RemoveAll(filepath.Dir(name)) },
		"good/file": func(string) error { return nil }, // below a file
	}
	var files []conffiles.File
	for name := range change {
		if name != "good/file" {
			testhost.WriteFile(t, at(name), "text\n")
		}
		files = append(files, conffiles.File{Name: name})
	}
	for name, apply := range change {
		if err := apply(at(name)); err != nil {
			t.Fatal(err)
		}
	}
	want := "/ dir 755\n/good file\n/tool.d dir 755\n/tool.d/good file\n"
	got := shownConffiles(t, dir, newDir(), files)
	if got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if got := shownConffiles(t, dir, newDir(), files); strings.Contains(got, "file") {
		t.Errorf("below a closed directory:\n%s", got)
	}
}

// Another file system that is mounted below /etc is not of the package.
func TestConffilesAreNotOnAnotherMount(t *testing.T) {
	dir := etcOfTest(t)
	testhost.PrivateMounts(t)
	for _, name := range []string{"tool/conf", "single", "here"} {
		testhost.WriteFile(t, filepath.Join(dir, name), "text\n")
	}
	mountAt(t, "tmpfs", filepath.Join(dir, "tool"), "mode=755")
	testhost.WriteFile(t, filepath.Join(dir, "tool/conf"), "text\n")
	bindAt(t, filepath.Join(dir, "single"))
	got := shownConffiles(t, dir, newDir(), []conffiles.File{{Name: "tool/conf"}, {Name: "single"}, {Name: "here"}})
	if strings.Count(got, " file\n") != 1 || !strings.Contains(got, "/here file\n") {
		t.Errorf("got\n%s", got)
	}
}

// A part of /etc that the sandbox shows otherwise stays, and large files are mounted.
func TestConffilesLeaveOtherPartsAlone(t *testing.T) {
	dir := etcOfTest(t)
	for _, name := range []string{"own", "taken/below", "dir/own", "dir/new", "link/new"} {
		testhost.WriteFile(t, filepath.Join(dir, name), "of the host\n")
	}
	testhost.WriteFile(t, filepath.Join(dir, "big"), strings.Repeat("x", mostConffileCopied+1))
	to := newDir()
	to.addChild("own", &node{kind: fileNode, text: "own"})
	to.addChild("taken", &node{kind: fileNode})
	to.addChild("link", &node{kind: linkNode, text: "elsewhere"})
	to.putBelow("dir/own", &node{kind: linkNode, text: "x"}, newDir)
	names := []string{"own", "taken/below", "dir", "dir/own", "dir/new", "link/new", "big"}
	var files []conffiles.File
	for _, name := range names {
		files = append(files, conffiles.File{Name: name})
	}
	got := shownConffiles(t, dir, to, files)
	want := "/ dir 755\n/big = " + dir + "/big\n/dir dir 755\n/dir/new file\n/dir/own -> x\n/link -> elsewhere\n/own file\n/taken file\n"
	if got != want || to.children["own"].text != "own" {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

// A file that the host's owner has changed to hold a password is not shown.
func TestConffilesWithASecretOfTheHostAreLeftOut(t *testing.T) {
	dir := etcOfTest(t)
	const packaged = "# password = here\n"
	sum := md5.Sum([]byte(packaged)) //nolint:gosec // the sums of dpkg
	var files []conffiles.File
	for name, text := range map[string]string{"same": packaged, "changed": "font = sans\n", "secret": packaged + "password = x\n", "address": "proxy = http://a:b@c/\n"} {
		testhost.WriteFile(t, filepath.Join(dir, name), text)
		files = append(files, conffiles.File{Name: name, Sum: hex.EncodeToString(sum[:])})
	}
	if got, want := shownConffiles(t, dir, newDir(), files), "/ dir 755\n/changed file\n/same file\n"; got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

func TestCopiesOfConffilesAreBounded(t *testing.T) {
	dir := etcOfTest(t)
	var files []conffiles.File
	text := strings.Repeat("x", mostConffileCopied)
	for i := range mostConffileCopies/mostConffileCopied + 2 {
		name := "file" + string(rune('a'+i/26)) + string(rune('a'+i%26))
		testhost.WriteFile(t, filepath.Join(dir, name), text)
		files = append(files, conffiles.File{Name: name})
	}
	if n := strings.Count(shownConffiles(t, dir, newDir(), files), " file\n"); n != mostConffileCopies/mostConffileCopied {
		t.Errorf("%d files of %d bytes are copied", n, mostConffileCopied)
	}
}

// A root that was prepared before a change of the file, of its directory or of the packages is
// not used.
func TestConffilesAreStamped(t *testing.T) {
	dir := etcOfTest(t)
	for _, name := range []string{"tool/conf", "tool/later"} {
		testhost.WriteFile(t, filepath.Join(dir, name), "text\n")
	}
	if err := os.Chmod(filepath.Join(dir, "tool/later"), 0o600); err != nil {
		t.Fatal(err)
	}
	for changed, apply := range map[string]func() error{
		"tool/conf":  func() error { return os.WriteFile(filepath.Join(dir, "tool/conf"), []byte("new\n"), 0o644) },
		"tool/later": func() error { return os.Chmod(filepath.Join(dir, "tool/later"), 0o644) },
		"tool":       func() error { return os.Chmod(filepath.Join(dir, "tool"), 0o711) },
	} {
		p := &plan{root: newDir(), sources: sources{rules: &hostpaths.Rules{}, stamps: &stamps.Collector{}}}
		etc, err := p.sources.open(dir)
		if err == nil {
			err = newEtcPlan(p, etc, p.root).takeConffiles([]conffiles.File{{Name: "tool/conf"}, {Name: "tool/later"}})
		}
		if err != nil {
			t.Fatal(err)
		}
		p.close()
		var mounts HostMounts
		t.Cleanup(mounts.Close)
		s, err := p.sources.stamps.Stamps(&mounts)
		if err != nil {
			t.Fatal(err)
		}
		checkChanged(t, &s, "")
		if err := apply(); err != nil {
			t.Fatal(err)
		}
		checkChanged(t, &s, filepath.Join(dir, changed))
	}
}

// The stamps of the host's own root have its parts, and the patterns of its /etc.
func TestTheHostsOwnRootIsStamped(t *testing.T) {
	testhost.NeedRoot(t, "mounts")
	c := testConfig()
	c.HostMounts = &HostMounts{}
	defer c.HostMounts.Close()
	r, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := r.Stamps()
	have := fmt.Sprintf("%+v", s)
	for _, path := range []string{"/usr", "/etc", "/bin", "/etc/ld.so.cache", "/etc/ssl/certs", "/etc/ssl", "/etc/xml"} {
		if !strings.Contains(have, "{path:"+path+" ") {
			t.Errorf("%s has no stamp", path)
		}
	}
	checkChanged(t, &s, "")
}

func checkChanged(t *testing.T, s *Stamps, want string) {
	t.Helper()
	if got, err := s.Changed(); got != want || err != nil {
		t.Errorf("changed: %q, %v; want %q", got, err, want)
	}
}
