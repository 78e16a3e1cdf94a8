package sandbox_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// withEtc is a root with these files in /etc. A text that begins with "->" is a link's.
func withEtc(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(root, "etc", name)
		err := os.WriteFile(path, []byte(text), 0o644)
		if link, ok := strings.CutPrefix(text, "->"); ok {
			err = errors.Join(os.Remove(path), os.Symlink(link, path))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestANameIsLookedUpInTheRoot(t *testing.T) {
	root := withEtc(t, map[string]string{
		"passwd": "ann:x:7:8::/:\n", "group": "staff:x:50:ann\n",
	})
	for name, want := range map[string]sandbox.User{"ann": {UID: 7, GID: 8, Groups: []uint32{50}}, "ann:staff": {UID: 7, GID: 50}} {
		c, err := sandbox.WithIDs(sandbox.Config{Rootfs: root, User: &sandbox.User{Name: name}})
		if err != nil || !reflect.DeepEqual(*c.User, want) {
			t.Errorf("%s: %+v, %v", name, c.User, err)
		}
	}
	// A root without groups is no mistake.
	root = withEtc(t, map[string]string{"passwd": "ann:x:7:8::/:\n"})
	if c, err := sandbox.WithIDs(sandbox.Config{Rootfs: root, User: &sandbox.User{Name: "ann"}}); err != nil || c.User.UID != 7 {
		t.Errorf("%+v, %v", c.User, err)
	}
}

func TestANameIsNotLookedUpOutsideTheRoot(t *testing.T) {
	outside := withEtc(t, map[string]string{"passwd": "ann:x:7:8::/:\n"})
	fifo := withEtc(t, nil)
	if err := unix.Mkfifo(filepath.Join(fifo, "etc", "passwd"), 0o666); err != nil {
		t.Fatal(err)
	}
	for name, root := range map[string]string{
		"link within":      withEtc(t, map[string]string{"passwd": "->real", "real": "ann:x:7:8::/:\n"}),
		"link out of it":   withEtc(t, map[string]string{"passwd": "->" + outside + "/etc/passwd"}),
		"link up":          withEtc(t, map[string]string{"passwd": "->../../../../../../../.." + outside + "/etc/passwd"}),
		"link to the host": withEtc(t, map[string]string{"passwd": "->/proc/self/root" + outside + "/etc/passwd"}),
		"named pipe":       fifo,
		"too large":        withEtc(t, map[string]string{"passwd": "ann:x:7:8::/:\n" + strings.Repeat("#\n", 1<<19)}),
		"missing":          withEtc(t, nil),
		"without the name": withEtc(t, map[string]string{"passwd": "bob:x:7:8::/:\n"}),
	} {
		var wrong *sandbox.ConfigError
		if c, err := sandbox.WithIDs(sandbox.Config{Rootfs: root, User: &sandbox.User{Name: "ann"}}); !errors.As(err, &wrong) {
			t.Errorf("%s: %+v, %v", name, c.User, err)
		}
	}
}

// The tree that covers /etc is not looked into: the launcher decides what is shown.
func TestANameBelowACoveredEtcIsRefused(t *testing.T) {
	for _, c := range []sandbox.Config{
		{Binds: []sandbox.Bind{{Source: "/srv", Target: "/etc"}}},
		{Binds: []sandbox.Bind{{Source: "/srv", Target: "/etc/passwd"}}},
		{Binds: []sandbox.Bind{{Source: "/srv", Target: "/etc/group"}}},
		{Overlays: []string{"/etc"}},
		{Overlays: []string{"/", "/etc/"}},
	} {
		c.User = &sandbox.User{Name: "root"}
		if _, err := sandbox.WithIDs(c); err == nil || !strings.Contains(err.Error(), "covers") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// The names of the default root are those of its generated /etc.
func TestIsolatedNamesOfUsers(t *testing.T) {
	m := newIsolated(t)
	for name, want := range map[string]string{
		"root": "0 0\n", "sandbox": "1000 1000\n", "nobody": "65534 65534\n", "sandbox:nogroup": "1000 65534\n", "12:sandbox": "12 1000\n",
	} {
		sb := create(t, m, sandbox.Config{User: &sandbox.User{Name: name}})
		if r, err := sb.Run(t.Context(), "echo $(id -u) $(id -G)"); err != nil || string(r.Stdout) != want {
			t.Errorf("%s: %q, %v", name, r.Stdout, err)
		}
		if r, err := sb.Exec(t.Context(), sandbox.Command{Args: []string{"id", "-u"}, User: &sandbox.User{Name: "root"}}); err != nil || string(r.Stdout) != "0\n" {
			t.Errorf("a command as root: %q, %v", r.Stdout, err)
		}
	}
	var wrong *sandbox.ConfigError
	if _, err := m.Create(t.Context(), sandbox.Config{User: &sandbox.User{Name: "ann"}}); !errors.As(err, &wrong) {
		t.Errorf("a name without a user: %v", err)
	}
	sb := create(t, m, sandbox.Config{})
	if _, err := sb.Exec(t.Context(), sandbox.Command{Args: []string{"id"}, User: &sandbox.User{Name: "ann"}}); !errors.As(err, &wrong) {
		t.Errorf("a command of a name without a user: %v", err)
	}
}
