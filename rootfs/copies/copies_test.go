package copies

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/stamps"
)

// TestMain holds that no test leaves a descriptor or a mount.
func TestMain(m *testing.M) { os.Exit(testhost.RunMounting(m)) }

// A fixture copies all files of a directory.
type fixture struct {
	t     *testing.T
	dir   *os.File
	store Store
	names []string
}

func newFixture(t *testing.T, names ...string) *fixture {
	t.Helper()
	f := &fixture{t, openDir(t, t.TempDir()), Store{openDir(t, t.TempDir())}, names}
	for _, name := range names {
		f.write(name, "text of "+name+"\n")
	}
	return f
}

func openDir(t *testing.T, path string) *os.File {
	t.Helper()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, dir)
	return dir
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir.Name(), name) }

func (f *fixture) write(name, text string) {
	f.t.Helper()
	testhost.WriteFile(f.t, f.path(name), text)
}

// files are the files in their present states.
func (f *fixture) files() (all []File) {
	for _, name := range f.names {
		var st unix.Stat_t
		all = append(all, File{Name: name, State: stamps.StateOf(&st, unix.Lstat(f.path(name), &st))})
	}
	return all
}

// source reads the present texts. Its caller began to look at a time.
func (f *fixture) source(began time.Time) Source {
	return Source{Dir: int(f.dir.Fd()), Began: began, Read: func() (map[string]string, error) {
		texts := map[string]string{}
		for _, name := range f.names {
			text, err := os.ReadFile(f.path(name))
			if err != nil {
				return nil, err
			}
			texts[name] = string(text)
		}
		return texts, nil
	}}
}

// later is long after the files have changed.
func later() time.Time { return time.Now().Add(time.Hour) }

// versions are the names in the store.
func (f *fixture) versions() []string {
	f.t.Helper()
	all, err := filepath.Glob(f.store.Dir.Name() + "/*")
	if err != nil {
		f.t.Fatal(err)
	}
	return all
}

// open opens the version of the present states. The version must have their texts.
func (f *fixture) open() (Version, error) {
	f.t.Helper()
	v, err := f.store.Open(f.files(), f.source(later()))
	if err != nil {
		return v, err
	}
	f.t.Cleanup(func() { unix.Close(v.Tree) })
	if slices.Sort(v.Names); !slices.Equal(v.Names, slices.Sorted(slices.Values(f.names))) {
		f.t.Errorf("names %q", v.Names)
	}
	for _, name := range f.names {
		f.checkText(v, name, "")
	}
	return v, nil
}

// checkText checks the text of a copy. Empty: the text is the present one.
func (f *fixture) checkText(v Version, name, want string) {
	f.t.Helper()
	if want == "" {
		text, err := os.ReadFile(f.path(name))
		if err != nil {
			f.t.Fatal(err)
		}
		want = string(text)
	}
	got, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/%s", v.Tree, name))
	if string(got) != want || err != nil {
		f.t.Errorf("%s has %q, want %q: %v", name, got, want, err)
	}
}

// check opens the version, which must exist afterwards or not be made for want.
func (f *fixture) check(want error, versions int) {
	f.t.Helper()
	if _, err := f.open(); !errors.Is(err, want) {
		f.t.Errorf("got %v, want %v", err, want)
	}
	if got := f.versions(); len(got) != versions {
		f.t.Errorf("versions %q, want %d", got, versions)
	}
}

// A sandbox can show each version. So all versions stay.
func TestVersionsStay(t *testing.T) {
	f := newFixture(t, "conf")
	first, err := f.open()
	if err != nil {
		t.Fatal(err)
	}
	for i := range mostVersions {
		f.check(nil, i+1)
		f.check(nil, i+1)
		f.write("conf", fmt.Sprintf("text %d\n", i))
	}
	f.check(errMostVersions, mostVersions)
	f.checkText(first, "conf", "text of conf\n")
}

// Two changes of a file can get the same time stamp, and a file can change between two looks. The copies must
// not have the text of one state for the other state.
func TestAFileThatChangesIsNotCopied(t *testing.T) {
	f := newFixture(t, "conf")
	if _, err := f.store.Open(f.files(), f.source(time.Now())); !errors.Is(err, errUnsettled) {
		t.Errorf("a file that has just changed: %v", err)
	}
	before := f.files()
	f.write("conf", "after\n")
	if _, err := f.store.Open(before, f.source(later())); !errors.Is(err, errUnsettled) {
		t.Errorf("a file that changes meanwhile: %v", err)
	}
	if got := f.versions(); len(got) != 0 {
		t.Errorf("versions %q", got)
	}
}

// Another launcher can be killed while it makes a version, or can hang.
func TestCopiesBesideOtherLaunchers(t *testing.T) {
	f := newFixture(t, "conf")
	for _, name := range []string{draftName, "the-boot-before-0123"} {
		testhost.WriteFile(t, filepath.Join(f.store.Dir.Name(), name, "tree/conf"), "half")
	}
	unlock, err := Store{openDir(t, f.store.Dir.Name())}.lock()
	if err != nil {
		t.Fatal(err)
	}
	f.check(errHeld, 2)
	unlock()
	f.check(nil, 1)
}

// Many launchers make the same version at a time.
func TestManyLaunchersMakeOneVersion(t *testing.T) {
	f := newFixture(t, "conf", "tool/conf", "tool/deep/conf")
	var all sync.WaitGroup
	for range 20 {
		own := *f
		own.store = Store{openDir(t, f.store.Dir.Name())}
		all.Go(func() {
			if _, err := own.open(); err != nil && !errors.Is(err, errHeld) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f.check(nil, 1)
}

// A state root can be small or full.
func TestCopiesNeedRoom(t *testing.T) {
	f := newFixture(t, "conf", "tool/conf")
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	for options, want := range map[string]error{"size=96k": errLittleRoom, "nr_inodes=40": errLittleRoom, "size=160k,nr_inodes=100": nil} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		f.store = Store{openDir(t, dir)}
		versions := 0
		if want == nil {
			versions = 1
		}
		f.check(want, versions)
	}
}

// The file system can become full meanwhile, or refuse a name.
func TestAFailedVersionLeavesNothing(t *testing.T) {
	f := newFixture(t)
	if err := f.store.add("key", map[string]string{"a/" + strings.Repeat("x", 300): "text"}); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("add: %v", err)
	}
	if got := f.versions(); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}
