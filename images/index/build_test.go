package index_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/index"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestTheSameLayersGiveTheSameBytes(t *testing.T) {
	var all []*os.File
	for _, items := range [][]item{many(500), sizes(), attributesOfAnyLength(), {file("d/.wh..wh..opq", ""), link("x", "f1")}} {
		all = append(all, layer(t, items...))
	}
	var first []byte
	for range 3 {
		f, s := build(t, all...)
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(b)) != s.Size {
			t.Errorf("the index has %d bytes, the summary says %d", len(b), s.Size)
		}
		if first == nil {
			first = b
		}
		if !bytes.Equal(first, b) {
			t.Error("two indexes of the same layers differ")
		}
	}
}

func TestPrivateAttributesAreLeftOut(t *testing.T) {
	f := file("f", "x")
	for _, name := range []string{"trusted.overlay.opaque", "user.overlay.redirect", "trusted.overlay.metacopy", "security.selinux",
		"security.ima", "security.capability.x", "system.posix_acl_access.x", "system.nfs4_acl", "com.apple.quarantine", "user", "user.",
		"trusted.overlay.", "trusted.overlayx"} {
		f = f.xattr(name, "y")
	}
	root := mounted(t, layer(t, f.xattr("user.kept", "k")))
	if got := attributes(t, filepath.Join(root, "f")); !slices.Equal(got, []string{"trusted.overlayx", "user.kept"}) {
		t.Errorf("attributes %q", got)
	}
}

func TestMountPointsAreDirectories(t *testing.T) {
	root := mounted(t, layer(t, symlink("proc", "/etc"), file("sys", "file"), symlink("dev", "dev"), symlink("tmp", "var/tmp"),
		dir("run"), file("run/kept", "k"), symlink("home", "srv/home"), symlink("etc", "/conf"), file("conf/hosts", "own"),
		symlink("conf/resolv.conf", "/run/none")))
	for path, want := range map[string]string{
		"proc": "040755 0:0", "sys": "040755 0:0", "dev": "040755 0:0", "tmp": "041777 0:0", "run": "040750 7:8", "workspace": "040755 0:0",
		"var/tmp": "041777 0:0", "srv/home/sandbox": "040755 0:0", "conf/hostname": "100644 0:0", "conf/resolv.conf": "120777 0:0",
	} {
		if got := describe(t, filepath.Join(root, path)); !strings.HasPrefix(got, want+" ") {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	if content(root+"/run/kept") != "k" || content(root+"/conf/hosts") != "own" {
		t.Error("files of the image were replaced")
	}
}

func TestAnImageWithoutRoomForMountPointsIsBuilt(t *testing.T) {
	root := mounted(t, layer(t, file("etc", "a file"), symlink("var", "var")))
	if content(root+"/etc") != "a file" {
		t.Error("/etc was replaced")
	}
	if s := describe(t, root+"/home/sandbox"); !strings.HasPrefix(s, "040755") {
		t.Errorf("home: %s", s)
	}
}

func TestHardLinksAreOneInode(t *testing.T) {
	root := mounted(t, layer(t, file("a", "x"), link("d/b", "a")), layer(t, link("c", "d/b")))
	var numbers []uint64
	for _, name := range []string{"a", "d/b", "c"} {
		var s unix.Stat_t
		if err := unix.Lstat(filepath.Join(root, name), &s); err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, s.Ino)
	}
	if numbers[0] != numbers[1] || numbers[0] != numbers[2] {
		t.Errorf("inodes %d", numbers)
	}
}

// sparse is an archive of a sparse file of 1 MiB, as GNU tar writes it.
func sparse(t testing.TB, args ...string) *os.File {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at, text := range map[int64]string{0: "begin", 300_000: strings.Repeat("middle", 2000), 1<<20 - 3: "end"} {
		if _, err := f.WriteAt([]byte(text), at); err != nil {
			t.Fatal(err)
		}
	}
	testhost.WriteFile(t, filepath.Join(dir, "after"), "after")
	out := newFile(t)
	cmd := exec.Command("tar", append(append([]string{"-c", "--sparse"}, args...), "-C", dir, "s", "after")...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("tar: %v", err)
	}
	return out
}

func TestSparseFilesAreCopied(t *testing.T) {
	for _, args := range [][]string{{"--format=gnu"}, {"--format=pax", "--sparse-version=1.0"}, {"--format=pax", "--sparse-version=0.1"}, {"--format=pax", "--sparse-version=0.0"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			l := sparse(t, args...)
			image, s := build(t, l)
			var disk unix.Stat_t
			if err := unix.Fstat(int(image.Fd()), &disk); err != nil {
				t.Fatal(err)
			}
			if s.Size < 1<<20 || disk.Blocks*512 > s.Size/2 {
				t.Errorf("the index has %d bytes, on disk %d", s.Size, disk.Blocks*512)
			}
			root := mount(t, image, l)
			want := make([]byte, 1<<20)
			copy(want, "begin")
			copy(want[300_000:], strings.Repeat("middle", 2000))
			copy(want[1<<20-3:], "end")
			if got := content(root + "/s"); got != string(want) {
				t.Errorf("the sparse file has other content: %d bytes", len(got))
			}
			if got := content(root + "/after"); got != "after" {
				t.Errorf("the file after it: %q", got)
			}
		})
	}
}

func TestManyLayersAreOneMount(t *testing.T) {
	var all []*os.File
	for n := range 130 {
		all = append(all, layer(t, file(fmt.Sprint("own", n), fmt.Sprint(n)), file("all", fmt.Sprint(n))))
	}
	root := mounted(t, all...)
	if got := content(root + "/all"); got != "129" {
		t.Errorf("all: %s", got)
	}
	for n := range all {
		if got := content(fmt.Sprint(root, "/own", n)); got != fmt.Sprint(n) {
			t.Errorf("own%d: %s", n, got)
		}
	}
}

func TestNoLayersAreARootOfMountPoints(t *testing.T) {
	root := mounted(t)
	if got := describe(t, root+"/workspace"); !strings.HasPrefix(got, "040755 0:0") {
		t.Error(got)
	}
}

func TestBuildEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := index.Build(ctx, []*os.File{layer(t, file("a", "x"))}, newFile(t), index.Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Random images hit combinations that no table has.
func TestRandomImagesShowWhatUmociUnpacks(t *testing.T) {
	umoci(t)
	for seed := range uint64(15) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			compareRandom(t, r)
		})
	}
}

func compareRandom(t *testing.T, r *rand.Rand) {
	var files []*os.File
	var built []item
	for range 1 + r.IntN(4) {
		var items []item
		for range r.IntN(30) {
			i := randomItem(r)
			// An entry below a file, or a link to nothing, is refused by both.
			if _, err := index.Build(t.Context(), append(slices.Clone(files), layer(t, append(slices.Clone(items), i)...)), newFile(t), index.Limits{}); err == nil {
				items = append(items, i)
			}
		}
		built = append(built, items...)
		files = append(files, layer(t, items...))
	}
	start := time.Now()
	compare(t, mounted(t, files...), unpack(t, files...), start)
	if t.Failed() {
		for _, i := range built {
			t.Logf("%c %s %s", i.Typeflag, i.Name, i.Linkname)
		}
	}
}

func randomItem(r *rand.Rand) item {
	names := []string{"a", "b", "c", "d"}
	path := names[r.IntN(4)]
	for range r.IntN(3) {
		path += "/" + names[r.IntN(4)]
	}
	other := names[r.IntN(4)] + "/" + names[r.IntN(4)]
	switch r.IntN(8) {
	case 0:
		return dir(path)
	case 1:
		return symlink(path, []string{other, "/" + other, "../" + other, names[r.IntN(4)]}[r.IntN(4)])
	case 2:
		return link(path, other)
	case 3:
		return file(filepath.Dir(path)+"/.wh."+filepath.Base(path), "")
	case 4:
		return file(path+"/.wh..wh..opq", "")
	default:
		return file(path, strings.Repeat("x", r.IntN(1000)))
	}
}

// Without a mark each of the markers would walk the whole directory.
func TestManyOpaqueMarkersCostNoMoreThanOne(t *testing.T) {
	const files, markers = 20_000, 20_000
	lower := make([]item, 0, files)
	for n := range files {
		lower = append(lower, file(fmt.Sprintf("d/%d", n), ""))
	}
	upper := slices.Clone(lower)
	for range markers {
		upper = append(upper, file("d/.wh..wh..opq", ""), file(".wh.d", ""))
	}
	l := []*os.File{layer(t, lower...), layer(t, upper...)}
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
	defer cancel()
	if _, err := index.Build(ctx, l, newFile(t), index.Limits{}); err != nil {
		t.Error(err)
	}
}

// Such archives come from umoci insert 0.4.7.
func TestAnArchiveWithoutPaddingAtItsEnd(t *testing.T) {
	var whole bytes.Buffer
	f := layer(t, file("a", strings.Repeat("x", 2000)), file("b", strings.Repeat("y", 700)))
	if _, err := f.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := whole.ReadFrom(f); err != nil {
		t.Fatal(err)
	}
	cut, out := newFile(t), newFile(t)
	if _, err := cut.Write(whole.Bytes()[:512+2048+512+700]); err != nil {
		t.Fatal(err)
	}
	if _, err := index.Build(t.Context(), []*os.File{cut}, out, index.Limits{}); err != nil {
		t.Error(err)
	}
}
