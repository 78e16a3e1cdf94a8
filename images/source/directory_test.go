package source

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// directoryEntries are the headers and contents of the layer of a directory, in their order.
func directoryEntries(t *testing.T, dir string) (headers []*tar.Header, contents map[string]string) {
	t.Helper()
	_, layers, err := readImage(t, "dir:"+dir, testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	contents = map[string]string{}
	in := tar.NewReader(bytes.NewReader(layers[0]))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		headers, contents[h.Name] = append(headers, h), string(text)
	}
}

func TestDirectoryIsAnImage(t *testing.T) {
	testhost.NeedRoot(t, "devices and owners")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	testhost.WriteFile(t, in("file"), "content")
	must(os.Link(in("file"), in("zlink")))
	must(os.Symlink("../outside", in("symlink")))
	must(os.Mkdir(in("sub"), 0o755))
	testhost.WriteFile(t, in("sub/deep"), "deep")
	must(os.Chown(in("sub/deep"), 70_000, 4_000_000_000))
	must(os.Chmod(in("sub/deep"), 0o755|os.ModeSetuid))
	must(unix.Setxattr(in("sub/deep"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	must(unix.Setxattr(in("sub/deep"), "user.a", []byte("b\x00c"), 0))
	must(unix.Setxattr(in("sub/deep"), "trusted.overlay.opaque", []byte("y"), 0))
	moment := time.Unix(-1_000_000, 123_456_789)
	must(os.Chtimes(in("sub/deep"), moment, moment))
	must(unix.Mkfifo(in("fifo"), 0o600))
	must(unix.Mknod(in("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	listener, err := net.Listen("unix", in("socket"))
	must(err)
	defer listener.Close()

	headers, contents := directoryEntries(t, dir)
	var got []string
	for _, h := range headers {
		got = append(got, fmt.Sprintf("%s %c %s", h.Name, h.Typeflag, h.Linkname))
	}
	want := "./ 5 |fifo 6 |file 0 |null 3 |sub/ 5 |sub/deep 0 |symlink 2 ../outside|zlink 1 file"
	if have := strings.Join(got, "|"); have != want {
		t.Errorf("entries %q, not %q", have, want)
	}
	if contents["file"] != "content" || contents["sub/deep"] != "deep" {
		t.Errorf("%q", contents)
	}
	for _, h := range headers {
		if h.Name == "null" && (h.Devmajor != 1 || h.Devminor != 3) {
			t.Errorf("%+v", h)
		}
		if h.Name != "sub/deep" {
			continue
		}
		if h.Uid != 70_000 || h.Gid != 4_000_000_000 || h.Mode != 0o4755 || !h.ModTime.Equal(moment) {
			t.Errorf("%+v", h)
		}
		if len(h.PAXRecords["SCHILY.xattr.security.capability"]) != 20 || h.PAXRecords["SCHILY.xattr.user.a"] != "b\x00c" || h.PAXRecords["SCHILY.xattr.trusted.overlay.opaque"] != "" {
			t.Errorf("%q", h.PAXRecords)
		}
	}
}

func TestDirectoryIsTheSameImageAgain(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "a", "c"} {
		testhost.WriteFile(t, filepath.Join(dir, name), name)
	}
	one, _, err := readImage(t, "dir:"+dir, testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	two, _, err := readImage(t, "dir:"+dir, testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	if one.Digest != two.Digest || !bytes.Equal(one.Config, two.Config) {
		t.Errorf("%+v and %+v", one, two)
	}
	if want := `"config":{}`; !bytes.Contains(one.Config, []byte(want)) {
		t.Errorf("config %s", one.Config)
	}
}

func TestDirectoryStaysOnItsMount(t *testing.T) {
	testhost.NeedRoot(t, "a mount")
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	for _, name := range []string{"mount", "kept"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("tmpfs", filepath.Join(dir, "mount"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(filepath.Join(dir, "mount"), unix.MNT_DETACH)
	testhost.WriteFile(t, filepath.Join(dir, "mount/secret"), "secret")
	if err := os.Mkdir(filepath.Join(dir, "mount/inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	headers, _ := directoryEntries(t, dir)
	if len(headers) != 3 {
		t.Errorf("%d entries", len(headers))
	}
}

// Files of an overlay can have other devices than its directories. All of them belong to the image.
func TestDirectoryOfAnOverlayIsWhole(t *testing.T) {
	testhost.NeedRoot(t, "mounts")
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	mount := func(source, name, kind, data string) {
		t.Helper()
		if err := os.Mkdir(in(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(source, in(name), kind, 0, data); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(in(name), unix.MNT_DETACH) })
	}
	mount("tmpfs", "one", "tmpfs", "")
	mount("tmpfs", "two", "tmpfs", "")
	testhost.WriteFile(t, in("one/lower"), "lower")
	for _, name := range []string{"two/upper", "two/work"} {
		if err := os.Mkdir(in(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	testhost.WriteFile(t, in("two/upper/written"), "written")
	mount("overlay", "all", "overlay", fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", in("one"), in("two/upper"), in("two/work")))
	_, contents := directoryEntries(t, in("all"))
	if len(contents) != 3 || contents["lower"] != "lower" || contents["written"] != "written" {
		t.Errorf("entries %q", contents)
	}
}

func TestDirectoryWithTheNameOfAWhiteoutIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	testhost.WriteFile(t, filepath.Join(dir, "sub/.wh.file"), "content")
	refuses(t, "dir:"+dir, testOptions(t), "sub/.wh.file: in a layer, a name that begins with \".wh.\" removes a file")
}

func TestDirectoryIsBounded(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sparse"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "sparse"), 1<<40); err != nil {
		t.Fatal(err)
	}
	o := testOptions(t)
	o.MaxBytes = 1 << 20
	refuses(t, "dir:"+dir, o, "more than 1048576 bytes")
	refuses(t, "dir:"+filepath.Join(dir, "sparse"), o, "not a directory")
	deep := t.TempDir()
	path := deep
	for range maxDepth + 2 {
		path += "/d"
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	refuses(t, "dir:"+deep, testOptions(t), "more than 500 directories")
	for _, d := range []string{dir, deep} {
		if left, _ := filepath.Glob(filepath.Join(d, "tmp-*")); len(left) > 0 {
			t.Errorf("%q are left", left)
		}
	}
}
