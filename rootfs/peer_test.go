package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/languages"
)

const (
	peerID  = 2000
	peerGID = 2001
	otherID = 3000
)

func testPeer() *Peer { return &Peer{UID: peerID, GIDs: []uint32{peerGID, 2002}} }

// peerConfig is a root of a peer's with a descriptor for each path, opened with
// the flags.
func peerConfig(t *testing.T, c Config, flags int) Config {
	t.Helper()
	base := testConfig()
	c.User, c.IDBase, c.MountPoints, c.Peer = base.User, base.IDBase, base.MountPoints, testPeer()
	c.Files = map[string]*os.File{}
	paths := []string{c.Dir, c.Workspace}
	for _, b := range c.Binds {
		paths = append(paths, b.Source)
	}
	for _, p := range paths {
		if p != "" && c.Files[p] == nil {
			c.Files[p] = opened(t, p, flags)
		}
	}
	return c
}

func opened(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// writeOwned writes a file, or makes a directory for a name that ends with a slash,
// with a mode and an owner.
func writeOwned(t *testing.T, path string, mode os.FileMode, uid, gid int) {
	t.Helper()
	if strings.HasSuffix(path, "/") {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	} else {
		testhost.WriteFile(t, path, "content")
	}
	if err := errors.Join(os.Chown(path, uid, gid), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// A peer has in its own directories what it has outside: what is made there is
// its own.
func TestPeerOwnsWhatItWrites(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	writeOwned(t, dir+"/ws/", 0o700, peerID, peerGID)
	writeOwned(t, dir+"/ws/secret", 0o600, peerID, peerGID)
	writeOwned(t, dir+"/file", 0o600, peerID, peerGID)
	r, m := mounted(t, peerConfig(t, Config{Workspace: dir + "/ws", Binds: []Bind{{Source: dir + "/file", Target: "/data/file", Writable: true}}}, os.O_RDONLY))
	inside(t, r, m.Path, 1000, "cat /workspace/secret > /workspace/copy; echo more >> /data/file")
	if got := ownerOf(t, dir+"/ws/copy"); got != own(peerID, peerGID) {
		t.Errorf("what was made belongs to %v", got)
	}
	if text, err := os.ReadFile(dir + "/file"); err != nil || string(text) != "contentmore\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// The files that somebody keeps for himself below a directory that everybody may
// list are not the peer's to read, so not the sandbox's either: not of its user,
// and not of its id 0.
func TestPeerReadsNothingOfOthers(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	writeOwned(t, dir+"/theirs/", 0o755, otherID, otherID)
	writeOwned(t, dir+"/mine/", 0o755, peerID, peerGID)
	// In a directory with the set-group-id bit of a group that the peer is not in.
	writeOwned(t, dir+"/grouped/", 0o755, peerID, 4)
	writeOwned(t, dir+"/member/", 0o755, peerID, 2002)
	type file struct {
		path     string
		mode     os.FileMode
		uid, gid int
		readable bool
	}
	files := []file{
		{"theirs/public", 0o644, otherID, otherID, true},
		{"theirs/private", 0o600, otherID, otherID, false},
		{"theirs/group", 0o640, otherID, otherID, false},
		{"theirs/closed/public", 0o644, otherID, otherID, false},
		{"theirs/roots", 0o600, 0, 0, false},
		{"theirs/thousand", 0o600, 1000, 1000, false}, // the number of the sandbox's user
		{"mine/private", 0o600, peerID, peerGID, true},
		{"mine/theirs", 0o600, otherID, otherID, false},
		{"mine/thousand", 0o600, 1000, 1000, false},
		{"mine/roots", 0o640, 0, 0, false},
		{"mine/group", 0o640, otherID, peerGID, true},
		{"grouped/private", 0o600, peerID, 4, true},
		{"grouped/adm", 0o640, 0, 4, false},
		{"member/group", 0o640, 0, 2002, true},
	}
	for _, f := range files {
		writeOwned(t, filepath.Join(dir, f.path), f.mode, f.uid, f.gid)
	}
	writeOwned(t, dir+"/theirs/closed/", 0o700, otherID, otherID)
	// Two go in as the root itself, too, and have what a shell needs.
	for _, root := range []string{"theirs", "mine"} {
		for _, name := range []string{"bin", "lib", "lib64"} {
			testhost.Symlink(t, "usr/"+name, filepath.Join(dir, root, name))
		}
		writeOwned(t, filepath.Join(dir, root)+"/usr/", 0o755, 0, 0)
	}
	asBinds := Config{}
	for _, name := range []string{"theirs", "mine", "grouped", "member"} {
		asBinds.Binds = append(asBinds.Binds, Bind{Source: filepath.Join(dir, name), Target: "/" + name})
	}
	usr := []Bind{{Source: "/usr", Target: "/usr"}}
	for kind, c := range map[string]Config{
		"bind": asBinds, "theirs": {Dir: dir + "/theirs", Binds: usr}, "mine": {Dir: dir + "/mine", Binds: usr},
	} {
		r, m := mounted(t, peerConfig(t, c, os.O_RDONLY))
		for _, f := range files {
			top, name, _ := strings.Cut(f.path, "/")
			at := "/" + f.path
			switch kind {
			case "bind":
			case top:
				at = "/" + name
			default:
				continue
			}
			if _, err := insideErr(r, m.Path, 1000, "cat "+at); (err == nil) != f.readable {
				t.Errorf("%s: %s can be read: %v", kind, at, err == nil)
			}
			// Here with capabilities over all that is mapped, which no command has.
			if _, err := insideErr(r, m.Path, 0, "cat "+at); err == nil && !f.readable {
				t.Errorf("%s: %s can be read by id 0", kind, at)
			}
		}
	}
}

// A source that cannot be idmapped has its owner become the sandbox's user: the
// peer, and a group of the peer's.
func TestPeersGroupWhereNothingIsIdmapped(t *testing.T) {
	testhost.PrivateMounts(t)
	ws := mountOverlay(t, ownedDir(t, 0, 0), own(peerID, 4))
	r := open(t, peerConfig(t, Config{Workspace: ws}, os.O_RDONLY))
	if r.ids.Direct == nil || *r.ids.Direct != own(peerID, peerGID) {
		t.Errorf("the sandbox's user is %v of the host", r.ids.Direct)
	}
}

func TestWhatAPeerIsRefused(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	writeOwned(t, dir+"/mine/", 0o755, peerID, peerGID)
	writeOwned(t, dir+"/mine/file", 0o644, peerID, peerGID)
	writeOwned(t, dir+"/theirs/", 0o777, otherID, otherID)
	writeOwned(t, dir+"/theirs/file", 0o666, otherID, otherID)
	writeOwned(t, dir+"/roots/", 0o777, 0, 0)
	bind := func(path string, writable bool) Config {
		return Config{Binds: []Bind{{Source: path, Target: "/data", Writable: writable}}}
	}
	for name, c := range map[string]struct {
		config Config
		flags  int
		want   string
	}{
		"root's home, named only":     {bind("/root", false), unix.O_PATH, "not opened for reading"},
		"the shadow file, named only": {bind("/etc/shadow", false), unix.O_PATH, "not opened for reading"},
		"own directory, named only":   {Config{Workspace: dir + "/mine"}, unix.O_PATH, "not opened for reading"},
		"rootfs, named only":          {Config{Dir: dir + "/roots"}, unix.O_PATH, "not opened for reading"},
		"a file opened for writing":   {bind(dir+"/mine/file", true), os.O_WRONLY, "not opened for reading"},
		"another's to write":          {bind(dir+"/theirs", true), os.O_RDONLY, "belongs to user 3000"},
		"another's file to write":     {bind(dir+"/theirs/file", true), os.O_RDWR, "belongs to user 3000"},
		"another's workspace":         {Config{Workspace: dir + "/theirs"}, os.O_RDONLY, "belongs to user 3000"},
		"root's workspace":            {Config{Workspace: dir + "/roots"}, os.O_RDONLY, "belongs to user 0"},
		"the host":                    {bind("/", false), os.O_RDONLY, "whole host"},
		"processes":                   {bind("/proc/1", false), os.O_RDONLY, "/proc"},
	} {
		t.Run(name, func(t *testing.T) {
			err := refusal(t, peerConfig(t, c.config, c.flags))
			var forbidden *ForbiddenError
			if !errors.As(err, &forbidden) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("no descriptor", func(t *testing.T) {
		for _, c := range []Config{bind("/root", false), {Workspace: dir + "/mine"}, {Dir: dir + "/mine"}} {
			c = peerConfig(t, c, os.O_RDONLY)
			c.Files = map[string]*os.File{"/elsewhere": opened(t, dir, os.O_RDONLY)}
			if err := refusal(t, c); !strings.Contains(err.Error(), "no descriptor") {
				t.Errorf("%v", err)
			}
		}
	})
	t.Run("peers that are none", func(t *testing.T) {
		for _, p := range []*Peer{{}, {UID: 0, GIDs: []uint32{0}}, {UID: peerID}} {
			c := testConfig()
			c.Peer = p
			if err := refusal(t, c); !strings.Contains(err.Error(), "peer: ") {
				t.Errorf("%+v: %v", p, err)
			}
		}
	})
}

// What was opened counts, wherever the path leads by now.
func TestSwappedSymlinkOfAPeer(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	writeOwned(t, dir+"/mine/", 0o755, peerID, peerGID)
	writeOwned(t, dir+"/mine/which", 0o644, peerID, peerGID)
	writeOwned(t, dir+"/theirs/which", 0o644, otherID, otherID)
	writeOwned(t, dir+"/theirs/", 0o700, otherID, otherID)
	for _, writable := range []bool{false, true} {
		link := filepath.Join(dir, "link")
		testhost.Symlink(t, dir+"/mine", link)
		c := peerConfig(t, Config{Binds: []Bind{{Source: link, Target: "/data", Writable: writable}}}, os.O_RDONLY)
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		testhost.Symlink(t, dir+"/theirs", link)
		_, m := mounted(t, c)
		if got := ownerOf(t, m.Path+"/data/which"); got != own(testBase+1000, testBase+1000) {
			t.Errorf("writable %v: what is shown belongs to %v", writable, got)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	// A path that sounds harmless, with the descriptor of something that is not.
	c := peerConfig(t, Config{Binds: []Bind{{Source: dir + "/mine", Target: "/data", Writable: true}}}, os.O_RDONLY)
	c.Files[dir+"/mine"] = opened(t, "/etc", os.O_RDONLY)
	var forbidden *ForbiddenError
	if err := refusal(t, c); !errors.As(err, &forbidden) || !strings.Contains(err.Error(), "/etc") {
		t.Errorf("%v", err)
	}
}

// Neither what is in a directory that is closed to the peer nor whether it is
// there is found out, by mount points that are to be made in it.
func TestPeerLooksIntoNoClosedDirectory(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	writeOwned(t, dir+"/theirs/closed/there/x", 0o644, otherID, otherID)
	writeOwned(t, dir+"/theirs/listed/x", 0o644, otherID, otherID)
	writeOwned(t, dir+"/theirs/closed/", 0o700, otherID, otherID)
	writeOwned(t, dir+"/theirs/entered/x", 0o644, otherID, otherID)
	writeOwned(t, dir+"/theirs/entered/", 0o711, otherID, otherID) // can be entered, not listed
	writeOwned(t, dir+"/theirs/listed/", 0o744, otherID, otherID)  // can be listed, not entered
	writeOwned(t, dir+"/mine/", 0o755, peerID, peerGID)
	for _, below := range []string{"closed/there/new", "closed/there", "closed/none/new", "closed/new", "listed/x/y", "listed/new", "entered/new"} {
		for _, c := range []Config{
			{Binds: []Bind{{Source: dir + "/theirs", Target: "/data"}, {Source: dir + "/mine", Target: "/data/" + below}}},
			{Dir: dir + "/theirs", Binds: []Bind{{Source: dir + "/mine", Target: "/" + below}}},
		} {
			if err := refusal(t, peerConfig(t, c, os.O_RDONLY)); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s: %v", below, err)
			}
		}
	}
}

func TestPeersDescriptorsOfOtherMountNamespaces(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	writeOwned(t, dir+"/mine/", 0o755, peerID, peerGID)
	config := Config{Binds: []Bind{{Source: dir + "/mine", Target: "/data"}}}
	for name, c := range map[string]Config{
		"a peer": peerConfig(t, config, os.O_RDONLY),
		"root": func() Config {
			c := peerConfig(t, config, os.O_RDONLY)
			c.Peer = nil
			return c
		}(),
	} {
		// Another namespace has the same at the same place.
		elsewhere := make(chan error)
		go func() {
			runtime.LockOSThread() // ends with the goroutine
			elsewhere <- func() error {
				if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
					return err
				}
				r, err := Open(c)
				if err == nil {
					r.Close()
				}
				return err
			}()
		}()
		if err := <-elsewhere; err == nil || !strings.Contains(err.Error(), "mount namespace") {
			t.Errorf("%s: %v", name, err)
		}
		open(t, c)
	}
	// Its path leads to something else now.
	c := peerConfig(t, config, os.O_RDONLY)
	mountAt(t, "tmpfs", dir+"/mine", "")
	if err := refusal(t, c); !strings.Contains(err.Error(), "mount namespace") {
		t.Errorf("mounted over: %v", err)
	}
}

// Language prefixes are paths, and what they lead to is the peer's to list.
func TestPeersLanguages(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	shown := testhost.Python(t, dir+"/opt/shown")
	hidden := testhost.Python(t, dir+"/home/closed/hidden")
	writeOwned(t, dir+"/home/closed/", 0o700, otherID, otherID)
	testhost.Symlink(t, hidden, dir+"/opt/link")
	p := testPeer()
	for path, want := range map[string]string{shown: shown, hidden: "", dir + "/opt/link": ""} {
		found, err := p.FindLanguages(path+"/bin", "/nowhere", nil, nil)
		if err != nil || strings.Join(found.Prefixes, ":") != want {
			t.Errorf("%s: %+v, %v", path, found, err)
		}
		c := peerConfig(t, Config{Prefixes: []string{path}}, os.O_RDONLY)
		if want != "" {
			open(t, c)
		} else if err := refusal(t, c); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s as a prefix: %v", path, err)
		}
	}
	if root, err := languages.Find(hidden+"/bin", "/nowhere", nil, nil); err != nil || len(root.Prefixes) != 1 {
		t.Errorf("root itself is not shown it: %+v, %v", root, err)
	}
}
