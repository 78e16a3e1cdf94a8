package statedir

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An open of a named pipe without a writer never returns.
func TestANamedPipeIsNoRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sandbox.json")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := ReadOwn(path)
		read <- err
	}()
	select {
	case got := <-read:
		if got == nil || !strings.Contains(got.Error(), "not a regular file") {
			t.Errorf("got %v", got)
		}
	case <-time.After(5 * time.Second):
		t.Error("the read waits for a writer")
	}
}
