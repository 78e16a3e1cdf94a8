package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func TestIsolatedSetWorkspace(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{})
	dir := t.TempDir()
	if err := os.Chown(dir, 4321, 4321); err != nil {
		t.Fatal(err)
	}
	if err := sb.SetWorkspace(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if r, err := sb.Run(t.Context(), "echo hello > /workspace/made"); err != nil || !r.OK() {
		t.Errorf("got %+v, %v", r, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "made")); err != nil || string(text) != "hello\n" {
		t.Errorf("on the host there is %q, %v", text, err)
	}
	if info, err := sb.Info(t.Context()); err != nil || info.Config.Workspace != dir {
		t.Errorf("it says that its workspace is %q, %v", info.Config.Workspace, err)
	}
}

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
