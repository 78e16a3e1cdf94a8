package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// openDir opens a directory again and again, as a launcher does.
func openDir(dir string) func() (*os.File, error) {
	return func() (*os.File, error) { return os.Open(dir) }
}

// versions are the versions of the copies in a directory.
func versions(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(dir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// An etcFixture shows the files of a directory in the place of /etc, as a root does.
type etcFixture struct {
	t          *testing.T
	dir, store string
	files      []conffiles.File
}

func newSharing(t *testing.T, names ...string) *etcFixture {
	t.Helper()
	s := &etcFixture{t: t, dir: etcOfTest(t), store: t.TempDir()}
	for _, name := range names {
		s.write(name, "text of "+name+"\n")
		s.files = append(s.files, conffiles.File{Name: name})
	}
	return s
}

func (s *etcFixture) write(name, text string) {
	s.t.Helper()
	testhost.WriteFile(s.t, filepath.Join(s.dir, name), text)
}

// planned is a plan that begins at a time.
func (s *etcFixture) planned(began time.Time) *plan {
	s.t.Helper()
	p := &plan{root: newDir(), sources: sources{rules: &hostpaths.Rules{}}, copies: openDir(s.store), began: began}
	s.t.Cleanup(p.close)
	etc, err := p.sources.open(s.dir)
	if err == nil {
		err = newEtcPlan(p, etc, p.root).takeConffiles(s.files)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// laterPlan is a plan that begins long after the files have changed.
func (s *etcFixture) laterPlan() *plan {
	s.t.Helper()
	return s.planned(time.Now().Add(time.Hour))
}

// checkShown checks whether a plan shows the copies that many sandboxes have, or copies of its own.
func (s *etcFixture) checkShown(p *plan, shared bool, versionsNow int) {
	s.t.Helper()
	if (p.root.under != nil) != shared {
		s.t.Errorf("shared copies: %v, want %v", !shared, shared)
	}
	if got := versions(s.t, s.store); len(got) != versionsNow {
		s.t.Errorf("versions %q, want %d", got, versionsNow)
	}
	if shared {
		if err := p.root.readCopies(p.root.under.fd, "."); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, f := range s.files {
		n := p.root
		for _, name := range split(f.Name) {
			n = n.children[name]
		}
		text, err := os.ReadFile(filepath.Join(s.dir, f.Name))
		if err != nil || n.text != string(text) {
			s.t.Errorf("%s: %q, want %q, %v", f.Name, n.text, text, err)
		}
	}
}

func TestAVersionOfCopiesIsMadeOnce(t *testing.T) {
	s := newSharing(t, "tool/conf", "big")
	s.write("big", strings.Repeat("x", mostConffileCopied+1))
	for range 2 {
		s.checkShown(s.laterPlan(), true, 1)
	}
	s.write("tool/conf", "another text\n")
	s.checkShown(s.laterPlan(), true, 2)
	s.write("tool/conf", "token = x\n")
	for range 2 {
		if got, want := describe(s.laterPlan().root, "/"), "/ dir 755\n/big file\n"; got != want {
			t.Errorf("got\n%s, want\n%s", got, want)
		}
	}
}

// Two changes of a file can get the same time stamp, and a file can change between two looks. The copies must
// not have the text of one state for the other state.
func TestAFileThatChangesIsNotShared(t *testing.T) {
	s := newSharing(t, "conf")
	s.checkShown(s.planned(time.Now()), false, 0)
	s.checkShown(s.laterPlan(), true, 1)

	p := &plan{root: newDir(), sources: sources{rules: &hostpaths.Rules{}}, copies: openDir(s.store), began: time.Now().Add(time.Hour)}
	t.Cleanup(p.close)
	etc, err := p.sources.open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	c := newEtcPlan(p, etc, p.root)
	s.write("conf", "before\n")
	one, err := c.examine(s.files[0])
	if err != nil {
		t.Fatal(err)
	}
	s.write("conf", "after\n")
	if err := c.share([]candidate{one}); err == nil || err.Error() != "a file changes" {
		t.Errorf("share: %v", err)
	}
	if got := versions(t, s.store); p.root.under != nil || len(got) != 1 {
		t.Errorf("shared %v, versions %q", p.root.under != nil, got)
	}
}

// checkCopies compares the copies in a root with the files of the host.
func checkCopies(t *testing.T, r *Root, m Mounted, store string) {
	t.Helper()
	all := versions(t, store)
	if len(all) != 1 {
		t.Fatalf("%d versions of the copies", len(all))
	}
	names, err := os.ReadFile(all[0] + "/list")
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.Lines(string(names)) {
		name = "/etc/" + strings.TrimSuffix(name, "\n")
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(m.Path + name); err != nil || string(got) != string(want) {
			t.Errorf("%s: %d bytes, %v; the host has %d", name, len(got), err, len(want))
		}
		if err := unix.Flock(lockable(t, m.Path+name), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("%s: flock beside another root: %v", name, err)
		}
		if f, err := os.OpenFile(m.Path+name, os.O_WRONLY, 0); err == nil {
			f.Close()
			if r.plan.etc != "" {
				t.Errorf("%s can be written", name)
			}
		}
	}
}

// Two roots show the same copies, and neither has an inode of the other.
func TestRootsShareCopiesWithoutInodes(t *testing.T) {
	testhost.PrivateMounts(t)
	for _, fsType := range []string{"", "tmpfs"} {
		cfg, store := testConfig(), t.TempDir()
		if fsType != "" {
			mountAt(t, fsType, store, "mode=700")
		}
		cfg.Copies = openDir(store)
		for range 2 {
			r, m := mounted(t, cfg)
			if len(versions(t, store)) == 0 {
				t.Skip("dpkg is not installed")
			}
			if r.plan.etc == "" {
				t.Error("the copies are the root's own")
			}
			checkCopies(t, r, m, store)
		}
	}
}

// The kernel makes no promise about an overlay after a change of its lower layers. The host name is the
// text of a file of one layer.
func TestNothingIsAddedBesideSharedCopies(t *testing.T) {
	testhost.PrivateMounts(t)
	for _, shared := range []bool{false, true} {
		cfg, store := testConfig(), t.TempDir()
		var mounts HostMounts
		t.Cleanup(mounts.Close)
		cfg.HostMounts = &mounts
		if shared {
			cfg.Copies = openDir(store)
		}
		r, m := mounted(t, cfg)
		if shared && len(versions(t, store)) == 0 {
			t.Skip("dpkg is not installed")
		}
		shown := r.TakeShown()
		t.Cleanup(shown.Close)
		if err := shown.SetHostname("a-new-name"); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(m.Path + "/etc/hostname"); err != nil || string(got) != "a-new-name\n" {
			t.Errorf("/etc/hostname has %q, %v", got, err)
		}
		added := Config{NameServer: "192.0.2.1", Search: []string{"a.example", "b.example"}, ResolverOptions: []string{"ndots:2"}}
		if err := shown.SetResolver(added); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(m.Path + "/etc/resolv.conf"); err != nil || string(got) != "nameserver 192.0.2.1\nsearch a.example b.example\noptions ndots:2\n" {
			t.Errorf("/etc/resolv.conf has %q, %v", got, err)
		}
		added.Search = []string{"a.example\nnameserver"}
		if err := shown.SetResolver(added); err == nil {
			t.Error("a line break is taken")
		}
		for target, refused := range map[string]bool{"/etc/new": shared, "/etc/new/file": shared, "/opt/new": false} {
			added := testConfig()
			added.Binds = []Bind{{Source: t.TempDir(), Target: target}}
			a, err := shown.Open(added, r.UIDMappings(), r.GIDMappings())
			a.Close()
			if refused != errors.Is(err, ErrNotAddable) || err != nil && !refused {
				t.Errorf("shared %v, %s: %v", shared, target, err)
			}
		}
	}
}

// A root has copies of its own where the kernel makes no overlay over the shared ones.
func TestRootsHaveCopiesOfTheirOwnWithoutOverlays(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"lower", "first", "store"} {
		testhost.WriteFile(t, at(name+"/here"), "")
	}
	mountAt(t, "tmpfs", at("first"), "mode=755")
	for _, name := range []string{"upper", "work", "upper2", "work2", "merged"} {
		if err := os.Mkdir(at("first/"+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	over := func(lower, number string) string {
		return "lowerdir=" + lower + ",upperdir=" + at("first/upper"+number) + ",workdir=" + at("first/work"+number)
	}
	mountAt(t, "overlay", at("first/merged"), over(at("lower"), ""))
	mountAt(t, "overlay", at("store"), over(at("first/merged"), "2"))
	if err := os.Remove(at("store/here")); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig()
	cfg.Copies = openDir(at("store"))
	r, m := mounted(t, cfg)
	if len(versions(t, at("store"))) == 0 {
		t.Skip("dpkg is not installed")
	}
	if r.plan.etc != "" {
		t.Error("an overlay of three levels")
	}
	checkCopies(t, r, m, at("store"))
}
