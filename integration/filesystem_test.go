package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hostFileSystems are the file systems of overlaid directories and data directories in
// the random tests.
var hostFileSystems = []string{"ext4", "xfs", "btrfs", "tmpfs"}

// mkfsOptions fit loop devices with blocks of 4 KiB.
func mkfsOptions(fsType string) []string {
	switch fsType {
	case "ext4":
		return []string{"-m", "0", "-b", "4096", "-I", "256"}
	case "xfs":
		return []string{"-s", "size=4096"}
	}
	return nil
}

// newFileSystem makes a directory and mounts a new file system of so many MiB there. Both
// are removed at the end of the test. A kernel without the file system skips the test.
func newFileSystem(t *testing.T, fsType, dir string, mib int64) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, mib<<20), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := mountImage(t, fsType, image, dir); errors.Is(err, unix.ENODEV) {
		t.Skip("this kernel has no " + fsType)
	} else if err != nil {
		t.Fatalf("mount %s: %v", fsType, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
		os.Remove(dir)
	})
}

// mountImage mounts the image of a file system. A tmpfs takes its size alone.
func mountImage(t *testing.T, fsType, image, dir string) error {
	t.Helper()
	if fsType == "tmpfs" {
		st, err := os.Stat(image)
		if err != nil {
			return err
		}
		return unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=700,size=%d", st.Size()))
	}
	command := func(name string, args ...string) string {
		out, err := exec.Command(hostTool(t, name), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v: %s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	command("mkfs."+fsType, append(mkfsOptions(fsType), "-q", image)...)
	device := command("losetup", "--find", "--show", image)
	err := unix.Mount(device, dir, fsType, 0, "")
	command("losetup", "--detach", device) // once it is unmounted
	return err
}
