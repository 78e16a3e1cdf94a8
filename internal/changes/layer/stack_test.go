package layer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestPathsChooseWhatIsListed(t *testing.T) {
	tests := map[string]struct {
		paths []string
		want  []string
	}{
		"a file":                {[]string{"f"}, []string{"M f file"}},
		"a directory":           {[]string{"n"}, []string{"C n directory", "C n/f file", "C n/m directory", "C n/m/f file"}},
		"in a new directory":    {[]string{"n/m/f"}, []string{"C n/m/f file"}},
		"several, one in other": {[]string{"n/m", "n/m/f", "g"}, []string{"D g file", "C n/m directory", "C n/m/f file"}},
		"not like a prefix":     {[]string{"nxx", "n/mm"}, nil},
		"unchanged":             {[]string{"e", "d/b"}, nil},
		"nothing there":         {[]string{"x/y"}, nil},
	}
	o := newOverlay(t)
	sh(t, o.base, baseTree)
	o.push()
	sh(t, o.merged, `echo > f; rm g; mkdir -p n/m; echo > n/f; echo > n/m/f; echo > nx; echo > d/a`)
	s := o.stack()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			expect(t, "changes", shorts(list(t, s, Options{Paths: test.paths})), test.want)
			expect(t, "names", shorts(list(t, s, Options{Paths: test.paths, Names: true})), test.want)
		})
	}
	for _, path := range []string{"", "/f", "d/../f", "d/", "./f", "d//a", "f\x00"} {
		for _, err := range s.Changes(Options{Paths: []string{path}}) {
			if err == nil {
				t.Errorf("Changes takes the path %q", path)
			}
		}
		if f, err := s.Open(path); err == nil {
			f.Close()
			t.Errorf("Open takes the path %q", path)
		}
		if c, err := s.Below(path); err == nil {
			t.Errorf("Below takes the path %q: %v", path, c)
		}
	}
}

func TestDeletedListsOnlyTheChosenPathsOfADirectoryThatIsGone(t *testing.T) {
	o := newOverlay(t)
	sh(t, o.base, baseTree)
	o.push()
	sh(t, o.merged, `rm -r d`)
	got := list(t, o.stack(), Options{Deleted: true, Paths: []string{"d/sub"}})
	expect(t, "changes", shorts(got), []string{"D d/sub directory", "D d/sub/c file"})
}

func TestListingEndsWhereTheCallerEndsIt(t *testing.T) {
	o := newOverlay(t)
	o.push()
	sh(t, o.merged, `mkdir -p a/b/c d`)
	for c := range o.stack().Changes(Options{}) {
		if c.Path == "a/b" {
			return // TestMain counts descriptors
		}
	}
	t.Error("a/b is not listed")
}

// TestIDsAreThoseInside has a layer that shows ids from 100000 on, and a base
// whose owner is the sandbox's user.
func TestIDsAreThoseInside(t *testing.T) {
	o := newOverlay(t)
	sh(t, o.base, `mkdir same; touch -d 2020-01-01 f; chown 500:500 f same .; touch own; chown 77:77 own`)
	xattrs("f", "system.posix_acl_access", acl(500))(t, o.base)
	o.push()
	sh(t, o.merged, `touch -d 2020-01-01 f; chown 101000:101000 f same; echo > same/new; chown 100000:100007 same/new; echo > foreign; chown 5 foreign`)
	xattrs("f", "system.posix_acl_access", acl(101000), "same/new", "system.posix_acl_access", acl(100008))(t, o.merged)
	s := o.stack()
	s.IDs = func(uid, gid uint32) (uint32, uint32, bool) { return uid - 100000, gid - 100000, uid >= 100000 }
	s.BaseIDs = func(uid, gid uint32) (uint32, uint32, bool) { return uid + 500, gid + 500, uid == 500 }
	all := list(t, s, Options{})
	expect(t, "changes", shorts(all), []string{"C foreign file", "C same/new file"})
	if c := all[0]; c.UID != 65534 || c.GID != 65534 {
		t.Errorf("an unknown id is told as %d:%d", c.UID, c.GID)
	}
	c := all[1]
	if got := string(c.Xattrs["system.posix_acl_access"]); c.UID != 0 || c.GID != 7 || got != acl(8) {
		t.Errorf("got %d:%d, ACL %q", c.UID, c.GID, got)
	}
	below, err := s.Below("f")
	if got := string(below.Xattrs["system.posix_acl_access"]); err != nil || below.UID != 1000 || got != acl(1000) {
		t.Errorf("below: %v, ACL %q, %v", below, got, err)
	}
	s.BaseIDs = nil
	expect(t, "without the base's ids", shorts(list(t, s, Options{})), []string{"M f file", "C foreign file", "M same directory", "C same/new file"})
}

func TestBelow(t *testing.T) {
	o := newOverlay(t)
	sh(t, o.base, baseTree+`
		ln -s /etc etc; ln -s d dlink; mkdir mnt; echo hidden > mnt/f`)
	if err := unix.Mount("tmpfs", filepath.Join(o.base, "mnt"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(o.base, "mnt/g"), "another mount's")
	o.push()
	s := o.stack()
	base, err := os.Open(o.base) // with what is mounted on it
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	s.Base = base
	c, err := s.Below("d/a")
	if err != nil || c.Type != spec.TypeFile || c.Size != 2 || c.Mode != 0o644 || c.Kind != "" {
		t.Errorf("d/a: %+v, %v", c, err)
	}
	if c, err := s.Below("link"); err != nil || c.Link != "f" {
		t.Errorf("link: %+v, %v", c, err)
	}
	f, err := s.OpenBelow("d/a")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 9)
	if n, _ := f.Read(b); string(b[:n]) != "x\n" {
		t.Errorf("d/a holds %q", b[:n])
	}
	for _, path := range []string{"none", "f/x", "etc/passwd", "dlink/a", "d/none/x"} {
		if c, err := s.Below(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %+v, %v", path, c, err)
		}
		if f, err := s.OpenBelow(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open %s: %v, %v", path, f, err)
		}
	}
	for _, path := range []string{"d", "link", "fifo", "etc"} {
		if f, err := s.OpenBelow(path); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("open %s: %v, %v", path, f, err)
		}
	}
	if c, err := s.Below("mnt/g"); !errors.Is(err, unix.EXDEV) {
		t.Errorf("another mount's file: %+v, %v", c, err)
	}
	s.Base = nil
	if _, err := s.Below("f"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a base: %v", err)
	}
}

// TestNothingMountedOnTheBaseIsTheBase: an overlay shows what lies under it.
func TestNothingMountedOnTheBaseIsTheBase(t *testing.T) {
	o := newOverlay(t)
	sh(t, o.base, `mkdir mnt`)
	o.push()
	sh(t, o.merged, `echo > mnt/f`)
	if err := unix.Mount("tmpfs", filepath.Join(o.base, "mnt"), "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(o.base, "mnt/f"), "another mount's")
	s := o.stack()
	base, err := os.Open(o.base)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	s.Base = base
	expect(t, "changes", shorts(list(t, s, Options{})), []string{"C mnt/f file"})
}

func TestOpenShowsWhatTheOverlayShows(t *testing.T) {
	o := newOverlay(t)
	sh(t, o.base, baseTree)
	o.push()
	sh(t, o.merged, `echo lower > d/n; echo lower > gone; mkdir x; echo lower > x/f; mkdir y; echo lower > y/f`)
	o.push()
	sh(t, o.merged, `echo upper > d/m; rm gone; rm -r x; mkdir x; rm -r y; ln -s /etc y; mkfifo p`)
	s := o.stack()
	sameContents(t, s, o.merged)
	for _, path := range []string{"gone", "x/f", "y/f", "y/passwd", "none", "d/none", "f", "d/a"} {
		if f, err := s.Open(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, %v", path, f, err)
		}
	}
	for _, path := range []string{"d", "y", "p"} {
		if f, err := s.Open(path); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v, %v", path, f, err)
		}
	}
}

func TestMarksServeCallersWithoutTheRightToReadThem(t *testing.T) {
	o := newOverlay(t)
	sh(t, o.base, baseTree)
	o.push()
	sh(t, o.merged, `rm -r d e; mkdir -p d/sub new/sub e; echo > d/b`)
	s := o.stack()
	want := shorts(list(t, s, Options{Deleted: true}))
	marks := map[string]Mark{}
	err := EachMark(t.Context(), s.Layers[0].Dir, func(path string, m Mark) error {
		marks[path] = m
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(marks) != 2 || !marks["d"].Opaque || !marks["e"].Opaque {
		t.Errorf("marks: %+v", marks)
	}
	for path := range marks {
		must(t, unix.Lremovexattr(filepath.Join(o.layer(0), path), opaqueXattr))
	}
	if got := shorts(list(t, s, Options{Deleted: true})); len(got) == len(want) {
		t.Errorf("the attributes were not removed: %q", got)
	}
	s.Layers[0].Marks = marks
	expect(t, "as told", shorts(list(t, s, Options{Deleted: true})), want)
}

func TestMarksEndWithTheirContext(t *testing.T) {
	o := newOverlay(t)
	o.push()
	sh(t, o.merged, `mkdir a`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	none := func(string, Mark) error { return nil }
	if err := EachMark(ctx, o.stack().Layers[0].Dir, none); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestMarksEndWithTheirReader(t *testing.T) {
	o := newOverlay(t)
	sh(t, o.base, baseTree)
	o.push()
	sh(t, o.merged, `rm -r d e; mkdir -p d/sub e`)
	full, count := errors.New("full"), 0
	err := EachMark(t.Context(), o.stack().Layers[0].Dir, func(string, Mark) error {
		count++
		return full
	})
	if !errors.Is(err, full) || count != 1 {
		t.Errorf("%d marks, %v", count, err)
	}
}

// TestWhoIsNotToldOfOpaqueDirsReadsNothing rather than that nothing was deleted.
func TestWhoIsNotToldOfOpaqueDirsReadsNothing(t *testing.T) {
	o := newOverlay(t)
	o.push()
	sh(t, o.merged, `mkdir a; echo > f`)
	s := o.stack()
	withoutSysAdmin(t, func() {
		for c, err := range s.Changes(Options{}) {
			if !errors.Is(err, errUntrusted) {
				t.Errorf("%+v, %v", c, err)
			}
		}
		s.Layers[0].Marks = map[string]Mark{}
		expect(t, "changes", shorts(list(t, s, Options{})), []string{"C a directory", "C f file"})
	})
}

// withoutSysAdmin takes the capability from the test's thread for a while.
func withoutSysAdmin(t *testing.T, do func()) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	must(t, unix.Capget(&header, &sets[0]))
	sets[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	must(t, unix.Capset(&header, &sets[0]))
	defer func() {
		sets[0].Effective |= 1 << unix.CAP_SYS_ADMIN
		must(t, unix.Capset(&header, &sets[0]))
	}()
	do()
}

// TestWhiteoutsThatAreNoDevices, as Linux 6.7 has them.
func TestWhiteoutsThatAreNoDevices(t *testing.T) {
	o := newOverlay(t)
	sh(t, o.base, baseTree)
	o.push()
	sh(t, o.merged, `touch d/a d/new`)
	sh(t, o.layer(0), `: > d/a; : > d/b; : > g; echo text > d/text`)
	xattrs("d", opaqueXattr, "x", "d/a", whiteoutXattr, "y", "d/text", whiteoutXattr, "y", "g", whiteoutXattr, "y")(t, o.layer(0))
	want := []string{"D d/a file", "M d/b file", "C d/new file", "C d/text file", "M g file"}
	expect(t, "changes", shorts(list(t, o.stack(), Options{})), want)
	expect(t, "names", shorts(list(t, o.stack(), Options{Names: true})), want)
}

func TestLayersThatAreNotOurs(t *testing.T) {
	o := newOverlay(t)
	sh(t, o.base, baseTree)
	o.push()
	sh(t, o.merged, `echo > a; mkdir d/new; echo > d/new/f; echo > f; echo > z`)
	xattrs("d/new", redirectXattr, "/e", "f", metacopyXattr, "y")(t, o.layer(0))
	s := o.stack()
	var got, failed []string
	for c, err := range s.Changes(Options{}) {
		var foreign foreignError
		if errors.As(err, &foreign) {
			failed = append(failed, c.Path+" "+foreign.xattr)
			continue
		}
		if errors.Is(err, ErrRenamed) {
			failed = append(failed, c.Path+" renamed")
			continue
		}
		must(t, err)
		got = append(got, shortForm(c))
	}
	expect(t, "errors", failed, []string{"d/new renamed", "f " + metacopyXattr})
	expect(t, "the others", got, []string{"C a file", "C z file"})
	if f, err := s.Open("f"); err == nil {
		f.Close()
		t.Error("a file without content can be opened")
	}
}

func TestDirectoryThatMayNotBeRead(t *testing.T) {
	o := newOverlay(t)
	o.push()
	sh(t, o.merged, `mkdir -p a/b c; echo > c/f; chmod 0 a; chown 1000 a c c/f`)
	s := o.stack()
	asUser(t, func() {
		var got []string
		for c, err := range s.Changes(Options{}) {
			if err != nil {
				if !errors.Is(err, fs.ErrPermission) {
					t.Error(err)
				}
				got = append(got, "not read: "+c.Path)
				continue
			}
			got = append(got, shortForm(c))
		}
		expect(t, "changes", got, []string{"C a directory", "not read: a", "C c directory", "C c/f file"})
	})
}

// asUser gives the test's thread, which it keeps, no rights but user 1000's.
func asUser(t *testing.T, do func()) {
	t.Helper()
	setfsuid := func(uid uintptr) {
		if _, _, e := unix.RawSyscall(unix.SYS_SETFSUID, uid, 0, 0); e != 0 {
			t.Fatal(e)
		}
	}
	setfsuid(1000)
	defer setfsuid(0)
	do()
}

func TestDevicesAreToldWhole(t *testing.T) {
	o := newOverlay(t)
	must(t, unix.Mknod(filepath.Join(o.base, "null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(filepath.Join(o.base, "loop"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 300))))
	o.push()
	sh(t, o.merged, `chmod 640 null loop`)
	all := list(t, o.stack(), Options{})
	if len(all) != 2 {
		t.Fatalf("changes: %q", shorts(all))
	}
	if c := all[0]; c.Type != spec.TypeDevice || !c.Block || c.Major != 7 || c.Minor != 300 || c.Mode != 0o640 {
		t.Errorf("loop: %+v", c)
	}
	if c := all[1]; c.Type != spec.TypeDevice || c.Block || c.Major != 1 || c.Minor != 3 {
		t.Errorf("null: %+v", c)
	}
}

// TestManyNames has changes in a directory of the base with few more names than
// that, which is read for names, and in one with very many, which is not.
func TestManyNames(t *testing.T) {
	for _, size := range []int{20, 6000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			o := newOverlay(t)
			sh(t, o.base, fmt.Sprintf(`mkdir d; cd d; seq -f %%04g %d | xargs touch -d 2020-01-01; rm 0005; ln -s x 0005; mkdir e`, size))
			o.push()
			sh(t, o.merged, `cd d; rm 0001; echo > 0002; : >> 0003; ln -sf y 0004; rm 0005; echo > 0005; chmod 600 0006
				echo > new1; echo > 0000; mkdir 0007x; chmod 700 e; echo > zz; chmod 600 0008; chmod 644 0008`)
			s := o.stack()
			want := []string{"C d/0000 file", "D d/0001 file", "M d/0002 file", "M d/0003 file", "M d/0004 symlink was file", "M d/0005 file was symlink",
				"M d/0006 file", "C d/0007x directory", "M d/0008 file", "C d/new1 file", "C d/zz file"}
			expect(t, "names", shorts(list(t, s, Options{Names: true})), want)
			want = slices.DeleteFunc(want, func(line string) bool { return line == "M d/0003 file" || line == "M d/0008 file" })
			expect(t, "changes", shorts(withoutLinks(list(t, s, Options{}))), slices.Insert(want, len(want)-2, "M d/e directory"))
		})
	}
}

// TestUserXattrsThatTheLayerCannotHave are not taken for removed: before Linux 6.6
// a tmpfs has none. Here it is a ramfs, which takes no overlay; what the overlay
// would copy is copied by hand.
func TestUserXattrsThatTheLayerCannotHave(t *testing.T) {
	o := newOverlay(t)
	sh(t, o.base, `mkdir d; echo > f; echo > old; echo > plain; touch -d 2020-01-01 *`)
	xattrs("d", "user.k", "d", "f", "user.k", "f", "old", "user.k", "old")(t, o.base)
	o.layers = 1
	o.mkdir(o.layer(0))
	if err := unix.Mount("ramfs", o.layer(0), "ramfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	sh(t, o.base, `cp -a . ../0/data; cd ../0/data; echo more >> f; echo > d/n; chmod 600 plain`)
	s := o.stack()
	all := list(t, s, Options{})
	names := []string{}
	for _, c := range all {
		names = append(names, fmt.Sprintf("%s %q", shortForm(c), c.Xattrs))
	}
	expect(t, "changes", names, []string{`C d/n file map[]`, `M f file map["user.k":"f"]`, `M plain file map[]`})
}
