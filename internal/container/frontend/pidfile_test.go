package frontend

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Both ways, whichever this file system takes.
func TestPidFileAppearsWhole(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	for name, write := range map[string]func(path, text string) error{"link": linkFile, "rename": renameFile} {
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
