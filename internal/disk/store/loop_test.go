package store

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What is in the place of loop devices, in containers and on hosts without the
// module, is no error of an image.
func TestHostsWithoutLoopDevicesAreUnsupported(t *testing.T) {
	asRoot(t)
	image := newData(t).image(t, "a.img", small)
	node := func(major, minor uint32) func(string) error {
		return func(path string) error {
			return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor)))
		}
	}
	for name, test := range map[string]struct {
		flags uintptr // of the mount that the node is on
		make  func(path string) error
		want  string
	}{
		"another device":   {0, node(1, 3), "inappropriate ioctl"}, // null
		"without a driver": {0, node(10, 253), "no such device"},
		"forbidden":        {unix.MS_NODEV, node(10, 237), "as root"}, // loop-control
	} {
		dir := t.TempDir() // removed where nothing is mounted on it
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread() // never unlocked: the thread ends with the test's goroutine
			if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount("tmpfs", dir, "tmpfs", test.flags, ""), test.make(dir+"/control"),
				unix.Mount(dir+"/control", "/dev/loop-control", "", unix.MS_BIND, "")); err != nil {
				t.Fatal(err)
			}
			f, err := MountImage(image)
			if err == nil {
				f.Close()
			}
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "no loop devices") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
