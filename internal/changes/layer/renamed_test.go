package layer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// makeWhole makes all renamed directories of the uppermost layer whole, as a launcher does.
func (o *overlay) makeWhole() {
	o.t.Helper()
	merged, upper := o.open(o.merged), o.open(o.layer(o.layers-1))
	for _, mark := range []bool{false, true} {
		for _, r := range o.findRenamed() {
			if !r.Whole {
				must(o.t, MakeWhole(context.Background(), merged, upper, r.Path, mark))
			}
		}
	}
	for _, r := range o.findRenamed() {
		if !r.Whole {
			o.t.Errorf("%q is not whole", r.Path)
		}
	}
}

// makeOpaque makes all whole directories opaque, and has the kernel forget the directories.
func (o *overlay) makeOpaque() {
	o.t.Helper()
	upper := o.open(o.layer(o.layers - 1))
	for _, r := range o.findRenamed() {
		must(o.t, MakeOpaque(context.Background(), upper, r.Path))
	}
	fd, err := unix.Fspick(unix.AT_FDCWD, o.merged, unix.FSPICK_CLOEXEC)
	if err != nil {
		o.t.Fatal(err)
	}
	defer unix.Close(fd)
	must(o.t, unix.FsconfigReconfigure(fd))
}

func (o *overlay) findRenamed() []RenamedDir {
	o.t.Helper()
	var layers []*os.File
	for n := o.layers - 1; n >= 0; n-- {
		layers = append(layers, o.open(o.layer(n)))
	}
	all, err := FindRenamed(context.Background(), layers...)
	must(o.t, err)
	return all
}

func (o *overlay) open(dir string) *os.File {
	o.t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { f.Close() })
	return f
}

func newRenaming(t testing.TB, script string) *overlay {
	t.Helper()
	o := newOverlay(t)
	o.renames = true
	sh(t, o.base, script)
	o.push()
	return o
}

// TestRenamedDirectoriesReadAsCopies does random things to an overlay in which directories of the
// layers below are renamed, and to the layers above it.
func TestRenamedDirectoriesReadAsCopies(t *testing.T) {
	renamed := 0
	for seed := range uint64(300) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			o := newOverlay(t)
			o.renames = true
			r := monkey{rand.New(rand.NewPCG(seed, 7))}
			r.act(o.base, 40)
			for range 1 + seed%3 {
				o.push()
				for range 3 {
					r.act(o.merged, 1+r.IntN(20))
					r.move(o.merged, 5)
					if r.IntN(3) == 0 {
						o.makeWhole()
					}
					if r.IntN(4) == 0 {
						o.makeWhole()
						o.makeOpaque()
					}
				}
				renamed += len(o.findRenamed())
				if seed%2 == 0 {
					o.makeWhole()
				} // else a layer of a snapshot has directories that are not whole
			}
			o.makeWhole()
			changesAreWhatShows(t, o)
		})
	}
	if renamed < 100 {
		t.Errorf("%d directories were renamed, want many", renamed)
	}
}

// move renames directories.
func (m monkey) move(dir string, n int) {
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != dir {
			dirs = append(dirs, path)
		}
		return nil
	})
	for range n {
		if len(dirs) > 0 {
			_ = unix.Rename(dirs[m.IntN(len(dirs))], m.path(dir)) // fails at much, which is no error
		}
	}
}

func TestAChangeOfNamesListsTheContent(t *testing.T) {
	const before = "mkdir -p src/sub other; echo 1 > src/a; echo 2 > src/sub/b; ln -s a src/l; mkfifo src/p; touch -d 2001-01-01 src/a src/sub"
	for name, c := range map[string]struct {
		script string
		want   []string
	}{
		"renamed":                {"mv src lib", []string{"+lib", "+lib/a", "+lib/l", "+lib/p", "+lib/sub", "+lib/sub/b", "-src"}},
		"changed afterwards":     {"mv src lib; echo x > lib/a; rm lib/l lib/p", []string{"+lib", "+lib/a", "+lib/sub", "+lib/sub/b", "-src"}},
		"into another renamed":   {"mv other o; mv src o/s", []string{"+o", "+o/s", "+o/s/a", "+o/s/l", "+o/s/p", "+o/s/sub", "+o/s/sub/b", "-other", "-src"}},
		"nested":                 {"mv src/sub src/s; mv src lib; rm lib/[alp]", []string{"+lib", "+lib/s", "+lib/s/b", "-src"}},
		"taken out":              {"mv src lib; mv lib/sub sub; rm -r lib", []string{"-src", "+sub", "+sub/b"}},
		"over an emptied one":    {"rm -r other; mkdir other; mv -T src/sub other", []string{"!other", "+other/b", "-src/sub"}},
		"back":                   {"mv src lib; mv lib src", nil},
		"back after a write":     {"mv src lib; echo x > lib/a; mv lib src", []string{"*src/a"}},
		"replaced":               {"mv src lib; mkdir src; echo x > src/a; rm -r lib", []string{"!src", "*src/a"}},
		"exchanged by new ones":  {"mv src t; mv other src; mv t other", []string{"!other", "+other/a", "+other/l", "+other/p", "+other/sub", "+other/sub/b", "!src"}},
		"into a new one":         {"mkdir -p new/in; mv src/sub new/in/", []string{"+new", "+new/in", "+new/in/sub", "+new/in/sub/b", "-src/sub"}},
		"back in a replaced one": {"mv src/sub x; rm -r src; mkdir src; mv x src/sub", []string{"!src", "!src/sub", "*src/sub/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := newRenaming(t, before)
			sh(t, o.merged, c.script)
			o.makeWhole()
			var got []string
			for _, change := range list(t, o.stack(), Options{Names: true}) {
				if change.Kind == spec.Modified && change.Type == spec.TypeDirectory && !change.Opaque {
					continue
				}
				sign := map[spec.ChangeKind]string{spec.Created: "+", spec.Deleted: "-", spec.Modified: "*"}[change.Kind]
				if change.Opaque {
					sign = "!"
				}
				got = append(got, sign+change.Path)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			changesAreWhatShows(t, o)
		})
	}
}

// The launcher copies the content before a layer is read. Without that nothing may seem to be empty.
func TestARenamedDirectoryIsNotReadBeforeItIsWhole(t *testing.T) {
	o := newRenaming(t, "mkdir src; echo 1 > src/a")
	sh(t, o.merged, "mv src lib")
	s := o.stack()
	var failed error
	for c, err := range s.Changes(Options{}) {
		if err != nil {
			failed = err
		} else if c.Path == "lib" {
			t.Errorf("listed: %+v", c)
		}
	}
	if !errors.Is(failed, ErrRenamed) {
		t.Errorf("got %v, want ErrRenamed", failed)
	}
}

// After an apply the host has no directory of the old path any more. The overlay must go on.
func TestAnOpaqueDirectoryOutlivesTheOneBelow(t *testing.T) {
	o := newRenaming(t, "mkdir -p src/sub; echo 1 > src/a; echo 2 > src/sub/b")
	sh(t, o.merged, "mv src lib; rm lib/a")
	o.makeWhole()
	o.makeOpaque()
	sh(t, o.base, "rm -r src")
	sh(t, o.merged, "test \"$(ls lib)\" = sub && test \"$(cat lib/sub/b)\" = 2 && rm lib/sub/b && rmdir lib/sub && test -z \"$(ls lib)\" && rmdir lib")
}

// A mark must not come to another layer, where it would hide a directory.
func TestMarksStayInTheirLayer(t *testing.T) {
	o := newRenaming(t, "mkdir -p src/sub; echo 1 > src/a; echo 2 > src/sub/b")
	sh(t, o.merged, "mv src lib")
	o.makeWhole()
	o.push()
	sh(t, o.merged, "echo x > lib/sub/c; mv lib/sub lib/t; mv lib/t lib/sub")
	if got := xattrsNamed(t, filepath.Join(o.layer(1), "lib"), wholeXattr); got {
		t.Error("the kernel has copied the mark")
	}
	o.makeWhole()
	changesAreWhatShows(t, o)
}

func xattrsNamed(t *testing.T, path, name string) bool {
	t.Helper()
	_, err := unix.Lgetxattr(path, name, nil)
	return err == nil
}
