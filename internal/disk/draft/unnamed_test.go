package draft

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// ways are both ways to make a file before its name, whichever this file system takes.
var ways = map[string]func(dir, prefix string, mode os.FileMode) (*Unnamed, error){"unnamed": Create, "named": createNamed}

func TestReplacedFileAppearsWhole(t *testing.T) {
	const pidFileMode = 0o644
	defer syscall.Umask(syscall.Umask(0o077))
	for name, create := range ways {
		write := func(path, text string) error {
			f, err := create(filepath.Dir(path), ".draft-", pidFileMode)
			if err != nil {
				return err
			}
			_, err = f.WriteString(text)
			return errors.Join(err, f.Chmod(pidFileMode), f.Replace(path), f.Close())
		}
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, other := filepath.Join(dir, "pid"), filepath.Join(t.TempDir(), "other")
			holds := func(path, want string) {
				t.Helper()
				got, err := os.ReadFile(path)
				info, _ := os.Lstat(path)
				if err != nil || string(got) != want || info.Mode() != pidFileMode {
					t.Errorf("%s: %q, %v, %v", path, got, info, err)
				}
				if left, _ := os.ReadDir(dir); len(left) != 1 {
					t.Errorf("in the directory: %v", left)
				}
			}
			for _, text := range []string{"1", "22"} { // the second in place of the first
				if err := write(path, text); err != nil {
					t.Fatal(err)
				}
				holds(path, text)
			}

			if err := os.WriteFile(other, []byte("not ours"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(other, 0o644); err != nil {
				t.Fatal(err)
			}
			os.Remove(path)
			if err := os.Symlink(other, path); err != nil {
				t.Fatal(err)
			}
			if err := write(path, "333"); err != nil {
				t.Fatal(err)
			}
			holds(path, "333")
			holds(other, "not ours")

			os.Remove(path)
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := write(path, "4444"); err == nil {
				t.Error("a directory is replaced")
			}
			if left, _ := os.ReadDir(dir); len(left) != 1 || !left[0].IsDir() {
				t.Errorf("in the directory: %v", left)
			}
		})
	}
}

// A file is as private as each other new file of the program.
func TestLinkedFilesHaveTheModeOfTheUmask(t *testing.T) {
	for way, create := range ways {
		for mask, want := range map[int]os.FileMode{0o077: 0o600, 0o022: 0o644, 0o002: 0o664, 0: 0o666} {
			dir := t.TempDir()
			defer syscall.Umask(syscall.Umask(mask))
			f, err := create(dir, ".draft-", 0o666)
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(dir, "file")
			if err := errors.Join(f.LinkDurably(name), f.Close()); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(name); err != nil || info.Mode() != want {
				t.Errorf("%s, with mask %#o: %v, %v", way, mask, info, err)
			}
			if left, _ := os.ReadDir(dir); len(left) != 1 {
				t.Errorf("%s: in the directory: %v", way, left)
			}
		}
	}
}

func TestLinkReplacesNoFile(t *testing.T) {
	for way, create := range ways {
		name := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := create(filepath.Dir(name), ".draft-", 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.LinkDurably(name); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", way, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if text, err := os.ReadFile(name); string(text) != "old" {
			t.Errorf("%s: %q, %v", way, text, err)
		}
	}
}
