package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
)

// --pid-file /dev/null must not cost the host its /dev/null.
func TestPidFileReplacesNoDevice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := frontend.WritePidFile(path, 1); err == nil || !strings.Contains(err.Error(), path+" is there and no regular file") {
		t.Error(err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("%v, %v", info, err)
	}
}
