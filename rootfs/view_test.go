package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// hostFiles are files of the host that a sandbox shows, of /usr and of /etc.
func hostFiles(t *testing.T) []string {
	t.Helper()
	files := []string{"/usr/bin/env"}
	for _, name := range []string{"/etc/ld.so.cache", "/etc/ssl/openssl.cnf"} {
		if st, err := os.Lstat(name); err == nil && st.Mode().IsRegular() {
			files = append(files, name)
		}
	}
	return files
}

// lockable opens a file for locks: reading is enough for a shared one.
func lockable(t *testing.T, name string) int {
	t.Helper()
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open %s: %v", name, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// lockOutside is the type of the lock that an exclusive one of outside would meet.
func lockOutside(t *testing.T, name string) int16 {
	t.Helper()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(uintptr(lockable(t, name)), unix.F_OFD_GETLK, &lock); err != nil {
		t.Fatalf("look for locks of %s: %v", name, err)
	}
	return lock.Type
}

func TestLocksReachNoFileOfTheHost(t *testing.T) {
	testhost.PrivateMounts(t)
	_, m := mounted(t, testConfig())
	for _, name := range hostFiles(t) {
		inside := lockable(t, m.Path+name)
		if err := unix.Flock(inside, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("%s: flock inside: %v", name, err)
		}
		if err := unix.FcntlFlock(uintptr(inside), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}); err != nil {
			t.Errorf("%s: record lock inside: %v", name, err)
		}
		outside := lockable(t, name)
		if err := unix.Flock(outside, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("%s: flock outside, while one is held inside: %v", name, err)
		}
		if got := lockOutside(t, name); got != unix.F_UNLCK {
			t.Errorf("%s: a record lock of the sandbox is on the host's file", name)
		}
	}
}

func TestWatchesTellNothingOfTheHost(t *testing.T) {
	testhost.PrivateMounts(t)
	_, m := mounted(t, testConfig())
	for _, name := range hostFiles(t) {
		watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(watch) })
		if _, err := unix.InotifyAddWatch(watch, m.Path+name, unix.IN_ALL_EVENTS); err != nil {
			t.Fatal(err)
		}
		told := func() bool {
			n, err := unix.Read(watch, make([]byte, 4096))
			return err == nil && n > 0
		}
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
		if told() {
			t.Errorf("%s: a watch inside tells of a read outside", name)
		}
		if _, err := os.ReadFile(m.Path + name); err != nil {
			t.Fatal(err)
		}
		if !told() {
			t.Errorf("%s: a watch inside tells nothing of a read inside", name)
		}
	}
}

// prefixConfig shows a directory as a language prefix.
func prefixConfig(t *testing.T) (cfg Config, prefix string) {
	t.Helper()
	prefix = filepath.Join(t.TempDir(), "lang")
	testhost.WriteFile(t, prefix+"/bin/run", "here")
	testhost.WriteFile(t, prefix+"/lib/mounted/below", "hidden")
	cfg = testConfig()
	cfg.MountPoints = []string{"/proc", "/dev"} // not /tmp, where the prefix lies
	cfg.Prefixes = []string{prefix}
	return cfg, prefix
}

// sharesInode says whether a file inside is the host's own.
func sharesInode(t *testing.T, m Mounted, name string) bool {
	t.Helper()
	if err := unix.Flock(lockable(t, m.Path+name), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	err := unix.Flock(lockable(t, name), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatal(err)
	}
	return err != nil
}

func TestPrefixesHaveInodesOfTheirOwn(t *testing.T) {
	testhost.PrivateMounts(t)
	cfg, prefix := prefixConfig(t)
	r, m := mounted(t, cfg)
	if sharesInode(t, m, prefix+"/bin/run") || len(r.Notes()) > 0 {
		t.Errorf("the file is the host's own; notes %q", r.Notes())
	}
}

// An entry of an unfolded directory is shown as the directory would be.
func TestUnfoldedEntriesHaveInodesOfTheirOwn(t *testing.T) {
	testhost.PrivateMounts(t)
	cfg, prefix := prefixConfig(t)
	cfg.Binds = []Bind{{Source: t.TempDir(), Target: prefix + "/new"}}
	r, m := mounted(t, cfg)
	if sharesInode(t, m, prefix+"/bin/run") || len(r.Notes()) > 0 {
		t.Errorf("the file is the host's own; notes %q", r.Notes())
	}
	if _, err := os.Stat(m.Path + prefix + "/new"); err != nil {
		t.Error(err)
	}
}

// The owner of a prefix puts a symbolic link in the place of a planned directory.
func TestALinkInAPrefixLeadsNowhere(t *testing.T) {
	testhost.PrivateMounts(t)
	for _, swapped := range []string{"/lib", "/lib/mounted", "/lib/mounted/inner", "/lib/mounted/below"} {
		t.Run(swapped, func(t *testing.T) {
			cfg, prefix := prefixConfig(t)
			testhost.WriteFile(t, prefix+"/lib/mounted/inner/x", "")
			cfg.Binds = []Bind{{Source: t.TempDir(), Target: prefix + "/lib/mounted/new"}}
			outside := t.TempDir()
			if err := unix.Rename(prefix+"/lib", outside+"/lib"); err != nil {
				t.Fatal(err)
			}
			testhost.WriteFile(t, prefix+"/lib/mounted/inner/x", "")
			testhost.WriteFile(t, prefix+"/lib/mounted/below", "")
			r := open(t, cfg)
			if err := os.RemoveAll(prefix + swapped); err != nil {
				t.Fatal(err)
			}
			testhost.Symlink(t, outside+swapped, prefix+swapped)
			m, err := r.Mount(stage(t))
			if err == nil {
				t.Fatalf("mounted, and below %s is %q", prefix+"/lib/mounted", names(t, m.Path+prefix+"/lib/mounted"))
			}
		})
	}
}

// wantNote holds that a file is the host's own, and that a note says so.
func wantNote(t *testing.T, r *Root, m Mounted, name, note string) {
	t.Helper()
	if !sharesInode(t, m, name) {
		t.Errorf("%s has an inode of its own", name)
	}
	if notes := strings.Join(r.Notes(), "\n"); !strings.Contains(notes, note) {
		t.Errorf("notes %q, want %q", notes, note)
	}
}

func TestMountsBelowAPrefixAreShown(t *testing.T) {
	testhost.PrivateMounts(t)
	cfg, prefix := prefixConfig(t)
	mountAt(t, "tmpfs", prefix+"/lib/mounted", "")
	testhost.WriteFile(t, prefix+"/lib/mounted/below", "seen")
	r, m := mounted(t, cfg)
	if text, err := os.ReadFile(m.Path + prefix + "/lib/mounted/below"); err != nil || string(text) != "seen" {
		t.Errorf("%q, %v", text, err)
	}
	wantNote(t, r, m, prefix+"/bin/run", "a file system is mounted on "+prefix+"/lib/mounted")
}

// The kernel stacks two file systems, not three.
func TestPrefixOnStackedOverlaysIsShown(t *testing.T) {
	testhost.PrivateMounts(t)
	cfg, prefix := prefixConfig(t)
	empty := t.TempDir()
	for range 2 {
		mountAt(t, "overlay", prefix, "lowerdir="+prefix+":"+empty)
	}
	r, m := mounted(t, cfg)
	wantNote(t, r, m, prefix+"/bin/run", prefix+" is not shown through an overlay")
}

// /usr is a mount of the test's here, so that the test can change it.
func TestRefreshShowsTheHostsPresentFiles(t *testing.T) {
	testhost.PrivateMounts(t)
	usr := t.TempDir()
	for name, text := range map[string]string{"bin/replaced": "old", "bin/held": "old", "bin/kept": "old"} {
		testhost.WriteFile(t, filepath.Join(usr, name), text)
	}
	if err := unix.Mount(usr, "/usr", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	unmountAfter(t, "/usr")
	_, m := mounted(t, testConfig())
	see := func(name string) string {
		text, err := os.ReadFile(filepath.Join(m.Path, "usr/bin", name))
		if errors.Is(err, os.ErrNotExist) {
			return "missing"
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	wantSeen := func(when string, want map[string]string) {
		t.Helper()
		for name, text := range want {
			if got := see(name); got != text {
				t.Errorf("%s, %s is %q, want %q", when, name, got, text)
			}
		}
	}
	wantSeen("before", map[string]string{"replaced": "old", "held": "old", "kept": "old", "new": "missing"})
	held, err := os.Open(filepath.Join(m.Path, "usr/bin/held"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for _, name := range []string{"replaced", "held", "new"} {
		testhost.WriteFile(t, filepath.Join(usr, "upgrade"), "new")
		if err := os.Rename(filepath.Join(usr, "upgrade"), filepath.Join(usr, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	wantSeen("before the refresh", map[string]string{"replaced": "old", "new": "missing"})
	if err := Refresh(m.Path); err != nil {
		t.Fatal(err)
	}
	wantSeen("after it", map[string]string{"replaced": "new", "new": "new", "kept": "old", "held": "old"})
}
