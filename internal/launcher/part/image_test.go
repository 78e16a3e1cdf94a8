package part

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/fsmount"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
)

// detachedImage is a detached mount with a file in /etc.
func detachedImage(t *testing.T) *os.File {
	t.Helper()
	c, err := fsmount.Open("tmpfs", "image")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fd, err := c.Mount()
	if err != nil {
		t.Fatal(err)
	}
	tree := os.NewFile(uintptr(fd), "image")
	t.Cleanup(func() { tree.Close() })
	etc := filepath.Join("/proc/self/fd", strconv.Itoa(fd), "etc")
	if err := errors.Join(os.Mkdir(etc, 0o755), os.WriteFile(filepath.Join(etc, "mark"), []byte("of the image"), 0o644)); err != nil { //nolint:gosec // an image's file
		t.Fatal(err)
	}
	return tree
}

// Before Linux 6.15 an image is attached for the copies of its directories, in a namespace that ends.
func TestAnAttachedImageIsARoot(t *testing.T) {
	testhost.PrivateMounts(t)
	root, err := openAttached(rootfs.Config{Image: detachedImage(t), IDBase: 1 << 30, User: rootfs.User{UID: 1000, GID: 1000, Home: "/home"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m, err := root.Mount(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	if m.Store != nil {
		descriptor.Close(m.Store)
	}
	if text, err := os.ReadFile(filepath.Join(m.Path, "etc/mark")); err != nil || string(text) != "of the image" {
		t.Errorf("the image's file: %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(record.Stage, "etc/mark")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the image is attached outside of the namespace: %v", err)
	}
}
