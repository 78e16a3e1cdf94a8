package rootfs

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// leftSocket makes a socket on which nobody listens. A process that may connect to it gets
// "Connection refused", any other process "Permission denied".
func leftSocket(t *testing.T, path string, mode os.FileMode, uid, gid int) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(l.Close(), os.Chown(path, uid, gid), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// connects tells the answer of the kernel to a connect in the sandbox.
const connects = `echo 'use IO::Socket::UNIX; IO::Socket::UNIX->new(Peer => "/data/s") ? print "connected" : print $!' | perl`

const (
	mayConnect    = "Connection refused"
	mayNotConnect = "Permission denied"
)

// A bound socket has the rights that its mode gives to the owner, and nobody can change these.
func TestBoundSockets(t *testing.T) {
	testhost.PrivateMounts(t)
	for name, test := range map[string]struct {
		mode     os.FileMode
		uid, gid int
		want     string
	}{
		"the owner alone":   {0o600, 4321, 4321, mayConnect},
		"root alone":        {0o600, 0, 0, mayConnect},
		"nobody":            {0, 4321, 4321, mayNotConnect},
		"only for reading":  {0o444, 4321, 4321, mayNotConnect},
		"the owner's group": {0o060, 4321, 4321, mayNotConnect}, // the class of the owner decides
		"everybody":         {0o666, 4321, 4321, mayConnect},
	} {
		path := t.TempDir() + "/s"
		leftSocket(t, path, test.mode, test.uid, test.gid)
		c := testConfig()
		c.Binds = []Bind{{Source: path, Target: "/data/s"}}
		r, m := mounted(t, c)
		if got := inside(t, r, m.Path, 1000, connects); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
		if got := inside(t, r, m.Path, 1000, "chmod 777 /data/s 2>&1 || stat -c %F:%u /data/s"); !strings.Contains(got, "Read-only file system") || !strings.HasSuffix(got, "socket:1000") {
			t.Errorf("%s: %s", name, got)
		}
		if notes := strings.Join(r.Notes(), "\n"); !strings.Contains(notes, path+" is a socket: a command in the sandbox can use its server, which sees user 1049576 of the host") {
			t.Errorf("%s: notes %q", name, notes)
		}
	}
}

// A peer shows sockets to which the peer can connect, and these have the peer's rights inside.
func TestPeersShowTheirSockets(t *testing.T) {
	testhost.PrivateMounts(t)
	for name, test := range map[string]struct {
		mode     os.FileMode
		uid, gid int
		want     string // or the error
	}{
		"own":                   {0o600, peerID, peerGID, mayConnect},
		"own, another group":    {0o600, peerID, 4, mayConnect},
		"own, closed":           {0o400, peerID, peerGID, "user 2000 may not connect"},
		"another's":             {0o600, otherID, otherID, "user 2000 may not connect"},
		"another's, no entry":   {0o755, otherID, otherID, "user 2000 may not connect"},
		"another's, for all":    {0o666, otherID, otherID, mayConnect},
		"root's":                {0o600, 0, 0, "user 2000 may not connect"},
		"root's, own group":     {0o660, 0, peerGID, mayNotConnect}, // nobody's inside, as another's files
		"another's, for others": {0o606, otherID, peerGID, "user 2000 may not connect"},
	} {
		path := t.TempDir() + "/s"
		leftSocket(t, path, test.mode, test.uid, test.gid)
		c := peerConfig(t, Config{Binds: []Bind{{Source: path, Target: "/data/s"}}}, unix.O_PATH)
		if !strings.HasPrefix(test.want, "user") {
			r, m := mounted(t, c)
			if got := inside(t, r, m.Path, 1000, connects); got != test.want {
				t.Errorf("%s: %s, want %s", name, got, test.want)
			}
			continue
		}
		var forbidden *ForbiddenError
		if err := refusal(t, c); !errors.As(err, &forbidden) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A descriptor of O_PATH proves nothing for other files.
	file := t.TempDir() + "/file"
	writeOwned(t, file, 0o600, peerID, peerGID)
	c := peerConfig(t, Config{Binds: []Bind{{Source: file, Target: "/data/s"}}}, unix.O_PATH)
	if err := refusal(t, c); !strings.Contains(err.Error(), "not opened for reading") {
		t.Errorf("a file: %v", err)
	}
}

// The sockets of the runtime are never shown, by any path.
func TestOwnSocketsAreNotShown(t *testing.T) {
	testhost.PrivateMounts(t)
	mountAt(t, "tmpfs", "/run", "")
	leftSocket(t, hostpaths.LauncherSocket, 0o666, 0, 0)
	dir := t.TempDir()
	l, err := net.Listen("unix", dir+"/own")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	testhost.Symlink(t, dir+"/own", dir+"/link")
	testhost.Symlink(t, hostpaths.LauncherSocket, dir+"/shared")
	if err := os.Link(dir+"/own", dir+"/second"); err != nil {
		t.Fatal(err)
	}
	leftSocket(t, dir+"/engine", 0o600, 0, 0)
	if err := errors.Join(os.Mkdir(dir+"/state", 0o755), os.Rename(dir+"/engine", dir+"/state/agent.sock")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir + "/own", dir + "/link", dir + "/second", hostpaths.LauncherSocket, dir + "/shared", dir + "/state/agent.sock"} {
		c := testConfig()
		c.Private = []string{dir + "/state"}
		c.Binds = []Bind{{Source: path, Target: "/data/s"}}
		if err := refusal(t, c); !strings.Contains(err.Error(), "of the runtime itself") && !strings.Contains(err.Error(), "the runtime's own directory") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestEnginesAreNamed(t *testing.T) {
	testhost.PrivateMounts(t)
	path := t.TempDir() + "/docker.sock"
	leftSocket(t, path, 0o660, 0, 0)
	c := testConfig()
	c.Binds = []Bind{{Source: path, Target: "/data/s"}}
	r := open(t, c)
	if notes := strings.Join(r.Notes(), "\n"); !strings.Contains(notes, "has the rights of root on the host") {
		t.Errorf("notes %q", notes)
	}
}
