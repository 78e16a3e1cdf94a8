package layer_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/layertest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// written is the archive of an overlay in which a script ran.
func written(t testing.TB, lower, edit string) (*layertest.Overlay, []byte, error) {
	t.Helper()
	o := layertest.New(t)
	run(t, o.Lower, "sh", "-ec", lower)
	o.Mount(t)
	run(t, o.Merged, "sh", "-ec", edit)
	var b bytes.Buffer
	err := layer.WriteTar(&b, o.Stack(t), layer.TarOptions{})
	return o, b.Bytes(), err
}

func run(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestExtractGivesWhatTheSandboxSaw does random things to random trees.
func TestExtractGivesWhatTheSandboxSaw(t *testing.T) {
	for seed := range uint64(60) {
		t.Run("", func(t *testing.T) {
			o := layertest.New(t)
			r := layertest.NewRandom(t, seed)
			r.Odd = true
			r.Grow(t, o.Lower, r.IntN(60))
			o.Mount(t)
			r.Edit(t, o.Merged, r.IntN(30))
			var b bytes.Buffer
			check(t, layer.WriteTar(&b, o.Stack(t), layer.TarOptions{}))
			want := layertest.Tree(t, o.Merged, layertest.All)
			again := &bytes.Buffer{}
			check(t, layer.WriteTar(again, o.Stack(t), layer.TarOptions{}))
			if !bytes.Equal(again.Bytes(), b.Bytes()) {
				t.Error("a second archive differs")
			}
			got := filepath.Join(filepath.Dir(o.Lower), "extracted")
			run(t, "", "cp", "-a", o.Lower, got)
			layertest.Extract(t, &b, got)
			layertest.Same(t, layertest.Tree(t, got, layertest.All), want)
		})
	}
}

// TestTarReadsTheArchive lists an archive with GNU tar, which has to see what the
// sandbox saw, and extracts it.
func TestTarReadsTheArchive(t *testing.T) {
	o, archive, err := written(t,
		"mkdir -p gone/x emptied replaced; echo a >gone/x/f; echo a >emptied/f; echo a >replaced/f; echo a >old",
		`rm -r gone emptied replaced old; mkdir emptied; echo b >replaced
		echo new >new; ln new other; ln -s '../x y' link; mkfifo -m 620 fifo
		echo s >setuid; chown 123:70000 setuid; chmod 4751 setuid
		echo n >"$(printf 'a\nb')"; echo l >$(printf %255s | tr ' ' n); echo u >"$(printf 'ü\377')"
		python3 -c 'import os; os.setxattr("setuid", "user.a b", b"\0\xff\n")'
		find . -exec touch -h -d '2001-02-03 04:05:06.123456789' {} +`)
	check(t, err)
	file := filepath.Join(filepath.Dir(o.Lower), "layer.tar")
	check(t, os.WriteFile(file, archive, 0o600))
	when := " 2001-02-03 04:05:06.123456789 "
	mark := "---------- 0/0               0 1970-01-01 00:00:00           "
	want := []string{
		"-rw-r--r-- 0/0               2" + when + `a\nb`,
		"drwxr-xr-x 0/0               0" + when + "emptied/",
		mark + "emptied/.wh..wh..opq",
		"prw--w---- 0/0               0" + when + "fifo",
		mark + ".wh.gone",
		"lrwxrwxrwx 0/0               0" + when + "link -> ../x y",
		"-rw-r--r-- 0/0               4" + when + "new",
		"-rw-r--r-- 0/0               2" + when + strings.Repeat("n", 255),
		mark + ".wh.old",
		"hrw-r--r-- 0/0               0" + when + "other link to new",
		"-rw-r--r-- 0/0               2" + when + "replaced",
		"-rwsr-x--x 123/70000         2" + when + "setuid",
		"-rw-r--r-- 0/0               2" + when + `\303\274\377`,
	}
	got := run(t, "", "tar", "--full-time", "--numeric-owner", "-tvf", file)
	if text := strings.Join(want, "\n") + "\n"; got != text {
		t.Errorf("tar lists\n%s\nand not\n%s", got, text)
	}
	dir := filepath.Join(filepath.Dir(o.Lower), "extracted")
	check(t, os.Mkdir(dir, 0o755))
	run(t, dir, "tar", "--xattrs", "--xattrs-include=user.*", "--exclude=.wh.*", "-xpf", file)
	layertest.Same(t, layertest.Tree(t, dir, layertest.All), layertest.Tree(t, o.Merged, layertest.All))
}

func TestWhatAnArchiveCannotHaveIsAnError(t *testing.T) {
	for _, test := range []struct{ name, lower, edit, want string }{
		{"a name of a whiteout", "", "echo a >.wh.x", `".wh.x": in a layer of an image, names that begin with .wh. mark`},
		{"a directory with the name of a whiteout", "", "mkdir -p d/.wh..wh..opq", `"d/.wh..wh..opq": in a layer`},
		{"below such", "mkdir .wh.d", "echo a >.wh.d/f", `".wh.d/f": in a layer`},
		{"such that is gone", "echo a >.wh.f", "rm .wh.f", `".wh.f": in a layer`},
		{"a terabyte of nothing", "", "truncate -s 1T x", `"x" is 1099511627776 bytes long, and all but 0 of them are holes`},
		{"a little more nothing than is taken", "", "truncate -s 1073741825 x", `"x" is 1073741825 bytes long, and all but 0`},
		{"an attribute", "", `echo a >x; python3 -c 'import os; os.setxattr("x", "user.a=b", b"")'`, `"x" has the extended attribute "user.a=b"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, archive, err := written(t, test.lower, test.edit)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, and not %s", err, test.want)
			}
			if len(archive) > 4096 {
				t.Errorf("%d bytes were written", len(archive))
			}
		})
	}
}

// TestHolesAreZeros has a file that is all hole, as large as is taken.
func TestHolesAreZeros(t *testing.T) {
	o := layertest.New(t)
	o.Mount(t)
	run(t, o.Merged, "sh", "-ec", "truncate -s 1073741824 f")
	n := &counter{}
	check(t, layer.WriteTar(n, o.Stack(t), layer.TarOptions{}))
	if n.bytes < 1<<30 || n.bytes > 1<<30+1<<14 {
		t.Errorf("%d bytes", n.bytes)
	}
}

// What is bounded is the archive: any number of files have a hole each.
func TestHolesOfAllFilesAreBounded(t *testing.T) {
	o := layertest.New(t)
	o.Mount(t)
	run(t, o.Merged, "sh", "-ec", "for i in 1 2 3 4 5; do truncate -s 256M $i; done")
	n := &counter{}
	if err := layer.WriteTar(n, o.Stack(t), layer.TarOptions{}); err == nil || !strings.Contains(err.Error(), `"5" is`) || n.bytes > 1<<30+1<<14 {
		t.Errorf("%d bytes, %v", n.bytes, err)
	}
}

// counter counts, and does what is to be done as soon as there is some of a file.
type counter struct {
	bytes int
	do    func()
}

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += len(p)
	if c.do != nil && c.bytes > 1<<16 {
		c.do()
		c.do = nil
	}
	return len(p), nil
}

func TestAFileThatChangesIsNamed(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(f *os.File) error
	}{
		{"grows", func(f *os.File) error { _, err := f.WriteAt([]byte("x"), 1<<20); return err }},
		{"shrinks", func(f *os.File) error { return f.Truncate(1 << 18) }},
		{"is written to", func(f *os.File) error { _, err := f.WriteAt([]byte("x"), 0); return err }},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := layertest.New(t)
			o.Mount(t)
			check(t, os.WriteFile(o.Merged+"/a\nb", make([]byte, 1<<20), 0o644))
			f, err := os.OpenFile(o.Merged+"/a\nb", os.O_WRONLY, 0)
			check(t, err)
			defer f.Close()
			err = layer.WriteTar(&counter{do: func() { check(t, test.do(f)) }}, o.Stack(t), layer.TarOptions{})
			if want := `"a\nb" changed while it was read: pause the sandbox, or wait until it is done`; fmt.Sprint(err) != want {
				t.Errorf("%v, and not %s", err, want)
			}
		})
	}
}

// TestNoLinkLeadsToWhatIsNotThere has the first name of a file come and go.
func TestNoLinkLeadsToWhatIsNotThere(t *testing.T) {
	o := layertest.New(t)
	o.Mount(t)
	run(t, o.Merged, "sh", "-ec", "echo x >b; ln b c; ln b d")
	layertest.Busy(t, o.Merged, func(dir int) {
		gone := unix.Unlinkat(dir, "b", 0)
		for range 100 {
			unix.Getppid() // so that it is as often gone as there
		}
		if err := errors.Join(gone, unix.Linkat(dir, "d", dir, "b", 0)); err != nil {
			t.Error(err)
		}
	})
	for range 1500 {
		var b bytes.Buffer
		if err := layer.WriteTar(&b, o.Stack(t), layer.TarOptions{}); err != nil {
			if !strings.Contains(err.Error(), "changed while it was read") {
				t.Fatal(err)
			}
			continue
		}
		there := map[string]bool{}
		for r := tar.NewReader(&b); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			check(t, err)
			there[h.Name] = true
			if h.Typeflag == tar.TypeLink && !there[h.Linkname] {
				t.Fatalf("%s is a link to %s, which is not in the archive", h.Name, h.Linkname)
			}
		}
	}
}

func TestSocketsAndDevicesAreLeftOutAndToldOf(t *testing.T) {
	o := layertest.New(t)
	o.Mount(t)
	check(t, unix.Mknod(o.Merged+"/device", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	check(t, unix.Mknod(o.Merged+"/socket", unix.S_IFSOCK|0o600, 0))
	run(t, o.Merged, "sh", "-ec", "echo a >file; ln device link")
	told := map[string]spec.FileType{}
	var b bytes.Buffer
	check(t, layer.WriteTar(&b, o.Stack(t), layer.TarOptions{LeftOut: func(path string, kind spec.FileType) { told[path] = kind }}))
	if want := "map[device:device link:device socket:socket]"; fmt.Sprint(told) != want {
		t.Errorf("told of %v, and not %s", told, want)
	}
	dir := t.TempDir()
	layertest.Extract(t, &b, dir)
	layertest.Same(t, layertest.Tree(t, dir, layertest.Directories), map[string]string{"file": `file false 2 "a\n" 87428fc522803d31065e7bce3cf03fe475096631e5e07bbd7a0fde60c4cf25c7`})
}

// TestSeveralTreesAreOneArchive has each below a place of its own.
func TestSeveralTreesAreOneArchive(t *testing.T) {
	o := layertest.New(t)
	run(t, o.Lower, "sh", "-ec", "echo a >gone; mkdir d; echo a >d/f")
	o.Mount(t)
	run(t, o.Merged, "sh", "-ec", "rm -r gone d; mkdir d; echo a >a; ln a b; ln -s a l")
	var b bytes.Buffer
	check(t, layer.WriteTar(&b, o.Stack(t), layer.TarOptions{Prefix: "home/u", More: true}))
	check(t, layer.WriteTar(&b, o.Stack(t), layer.TarOptions{Prefix: "srv"}))
	file := filepath.Join(t.TempDir(), "layer.tar")
	check(t, os.WriteFile(file, b.Bytes(), 0o600))
	var want strings.Builder
	for _, prefix := range []string{"home/u", "srv"} {
		for _, name := range []string{"a", "b", "d/", "d/.wh..wh..opq", ".wh.gone", "l"} {
			fmt.Fprintf(&want, "%s/%s\n", prefix, name)
		}
	}
	if got := run(t, "", "tar", "-tf", file); got != want.String() {
		t.Errorf("%s\nand not\n%s", got, &want)
	}
	if got := run(t, "", "tar", "-tvf", file); !strings.Contains(got, "srv/b link to srv/a\n") || !strings.Contains(got, "home/u/l -> a\n") {
		t.Error(got)
	}
}

// TestABrokenPipeEndsTheArchive: whoever reads may go away.
func TestABrokenPipeEndsTheArchive(t *testing.T) {
	o := layertest.New(t)
	o.Mount(t)
	run(t, o.Merged, "sh", "-ec", "truncate -s 100M f")
	r, w := io.Pipe()
	r.Close()
	if err := layer.WriteTar(w, o.Stack(t), layer.TarOptions{}); err == nil || !strings.Contains(err.Error(), "closed pipe") {
		t.Error(err)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
