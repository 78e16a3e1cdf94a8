package jobs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A file of another type in the place of an output is not read, and does not hold up a removal.
func TestOutputOfAnotherType(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for kind, plant := range map[string]func(name string) error{
		"link":      func(name string) error { return os.Symlink(victim, name) },
		"pipe":      func(name string) error { return unix.Mkfifo(name, 0o600) },
		"directory": func(name string) error { return os.Mkdir(name, 0o700) },
	} {
		d := &detachedExec{Dir: t.TempDir()}
		if err := plant(filepath.Join(d.Dir, "stdout")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.Dir, "stderr"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		opened := make(chan error, 1)
		go func() { opened <- d.open(os.O_RDONLY) }()
		select {
		case err := <-opened:
			if err == nil {
				t.Errorf("%s: opened", kind)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the open does not return", kind)
		}
		if err := d.truncate(); err != nil {
			t.Errorf("%s: truncate: %v", kind, err)
		}
	}
	if got, err := os.ReadFile(victim); err != nil || string(got) != "mine" {
		t.Errorf("the victim has %q, %v", got, err)
	}
}
