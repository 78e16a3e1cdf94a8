package nameserver

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A resolv.conf that is a named pipe or a directory is an error, and blocks no caller.
func TestReadConfigOfOtherFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "resolv.conf")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, t.TempDir(), "/dev/zero"} {
		if c, err := ReadConfig(path); err == nil {
			t.Errorf("%s: %+v", path, c)
		}
	}
}
