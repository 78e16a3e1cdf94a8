package server

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

func TestListen(t *testing.T) {
	for name, dir := range map[string]string{"short": "new", "too long for an address": strings.Repeat("d", 150)} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), dir, "s")
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			l, err := Listen(path, 0o600, SameGroup)
			if err != nil {
				t.Fatal(err)
			}
			for p, want := range map[string]os.FileMode{path: 0o600 | os.ModeSocket, filepath.Dir(path): 0o700 | os.ModeDir} {
				if st, err := os.Stat(p); err != nil || st.Mode() != want {
					t.Errorf("%s: %v, %v", p, st.Mode(), err)
				}
			}
			if _, err := Listen(path, 0o600, SameGroup); err == nil || !strings.Contains(err.Error(), "another launcher listens there") {
				t.Errorf("a second one: %v", err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestASocketIsReplacedIfNobodyListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	if _, err := Listen(path, 0o600, SameGroup); err == nil || !strings.Contains(err.Error(), "somebody listens there") {
		t.Errorf("one that somebody listens on: %v", err)
	}
	old.Close()
	l, err := Listen(path, 0o600, SameGroup)
	if err != nil {
		t.Fatalf("one that was left: %v", err)
	}
	l.Close()
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, 0o600, SameGroup); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file: %v", err)
	}
}

func TestAClientFindsTheListener(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path, 0o600, SameGroup)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- w.Serve(l.UnixListener) }()
	c, err := protocol.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.List(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := c.List(t.Context()); err != nil {
		t.Errorf("who was connected before: %v", err)
	}
}

// In a directory of another user's that user would own what the socket's name
// leads to: a socket of its own, or a link to a file whose mode is changed.
func TestASocketIsNotPutAmongOthers(t *testing.T) {
	for name, test := range map[string]struct {
		mode  os.FileMode
		owner int
		taken bool
	}{
		"its own":       {0o755, os.Geteuid(), true},
		"as /tmp":       {0o777 | os.ModeSticky, os.Geteuid(), true},
		"of everybody":  {0o777, os.Geteuid(), false},
		"of a group":    {0o770, os.Geteuid(), false},
		"of other user": {0o700, 4711, false},
	} {
		t.Run(name, func(t *testing.T) {
			if test.owner != os.Geteuid() && os.Geteuid() != 0 {
				t.Skip("needs root: to be two users")
			}
			dir := t.TempDir()
			if err := errors.Join(os.Chmod(dir, test.mode), os.Chown(dir, test.owner, -1)); err != nil {
				t.Fatal(err)
			}
			l, err := Listen(dir+"/s", 0o600, SameGroup)
			if (err == nil) != test.taken {
				t.Errorf("got %v", err)
			}
			if err == nil {
				l.Close()
			}
		})
	}
}

func TestTheModeOfASocketIsNotThatOfALink(t *testing.T) {
	dir := t.TempDir()
	secret, link := dir+"/secret", dir+"/link"
	if err := errors.Join(os.WriteFile(secret, nil, 0o600), os.Symlink(secret, link)); err != nil {
		t.Fatal(err)
	}
	if err := openSocket(link, 0o666, 4711); err == nil {
		t.Error("a link is a socket")
	}
	if st, err := os.Stat(secret); err != nil || st.Mode() != 0o600 || st.Sys().(*syscall.Stat_t).Gid == 4711 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestASocketHasItsGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to give a file to any group")
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path, 0o660, 4711)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if gid := st.Sys().(*syscall.Stat_t).Gid; gid != 4711 || st.Mode().Perm() != 0o660 {
		t.Errorf("group %d, mode %v", gid, st.Mode())
	}
}

// A mistyped path makes no directories.
func TestASocketNeedsItsDirectory(t *testing.T) {
	dir := t.TempDir()
	if _, err := Listen(filepath.Join(dir, "a/b/s"), 0o600, SameGroup); err == nil || !strings.Contains(err.Error(), dir+"/a/b of the socket does not exist") {
		t.Errorf("got %v", err)
	}
	if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
		t.Errorf("made %v, %v", made, err)
	}
}
