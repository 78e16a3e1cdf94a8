package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// The program that serves files stays for some seconds. It is in no workspace's way.
func TestIsolatedSetWorkspaceAfterFiles(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{})
	dir := t.TempDir()
	if err := os.Chown(dir, 4321, 4321); err != nil {
		t.Fatal(err)
	}
	if err := sb.Files().WriteFile(t.Context(), "/tmp/before", []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := sb.SetWorkspace(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := sb.Files().WriteFile(t.Context(), "/workspace/after", []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "after")); err != nil || string(text) != "text" {
		t.Errorf("on the host there is %q, %v", text, err)
	}
}

// The socket that no sandbox shows is that of the launcher for all users.
func TestSharedSocketIsNotShown(t *testing.T) {
	if sandbox.SharedSocket != hostpaths.LauncherSocket {
		t.Errorf("%s and %s", sandbox.SharedSocket, hostpaths.LauncherSocket)
	}
}
