package store

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// hostFileSystems are those that data directories are tested on.
var hostFileSystems = []string{"ext4", "xfs", "btrfs", "tmpfs"}

// hostOn is a small disk with a file system, in which a data directory is.
func hostOn(t *testing.T, fsType string, bytes int64) dataDir {
	t.Helper()
	asRoot(t)
	if fsType == "tmpfs" {
		host, err := Memory(Limits{Bytes: bytes, Files: 1000})
		return dataIn(t, in(closing(t, host, err)))
	}
	file, err := os.Create(filepath.Join(t.TempDir(), fsType))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(bytes); err != nil {
		t.Fatal(err)
	}
	// Loop devices have blocks of 4 KiB here.
	options := map[string][]string{"ext4": {"-b", "4096"}, "xfs": {"-s", "size=4096"}}[fsType]
	mkfs := exec.Command("mkfs."+fsType, append(options, "-q", file.Name())...)
	if out, err := mkfs.CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
		t.Skipf("needs mkfs.%s", fsType)
	} else if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	device, err := attach(file)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	host, err := mount(fsType, device.Name())
	return dataIn(t, in(closing(t, host, err)))
}

// fillDisk leaves no byte free on a data directory's disk, and returns how to free
// them again.
func fillDisk(t *testing.T, d dataDir) (free func()) {
	t.Helper()
	path := filepath.Join(d.path, "others")
	f, err := os.OpenFile(path, unix.O_WRONLY|unix.O_CREAT|unix.O_SYNC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size >= 512; size /= 2 {
		block := bytes.Repeat([]byte{1}, size)
		for err = nil; err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// loseWrite has a write to a mounted image succeed and be lost.
func loseWrite(t *testing.T, d dataDir, m *os.File) {
	t.Helper()
	free := fillDisk(t, d)
	defer free()
	content := make([]byte, 4<<20)
	rand.Read(content)
	err := os.WriteFile(in(m)+"/lost", content, 0o600)
	if errors.Is(err, unix.EROFS) { // the kernel has written a part, and has noticed the loss
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	top, err := os.Open(in(m))
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	if err := unix.Syncfs(int(top.Fd())); err == nil {
		t.Fatal("the host's disk has room")
	}
}

// heldOf is a file that is open before anything can fail.
func heldOf(t *testing.T, m *os.File) *os.File {
	t.Helper()
	f, err := os.Open(in(m))
	return closing(t, f, err)
}

func checkFailed(t *testing.T, what string, err error) *FailureError {
	t.Helper()
	var failure *FailureError
	if !errors.As(err, &failure) {
		t.Fatalf("%s: %v", what, err)
	}
	if since := time.Since(failure.Time); !failure.Time.IsZero() && (since < -time.Second || since > time.Hour) {
		t.Errorf("%s: it was %v ago", what, since)
	}
	return failure
}

// Somebody else has asked for the error first, as a command in a sandbox can.
func TestLostWriteIsFoundAndRecorded(t *testing.T) {
	for _, fsType := range hostFileSystems {
		t.Run(fsType, func(t *testing.T) {
			d := hostOn(t, fsType, 500<<20)
			path := d.image(t, "a.img", Limits{Bytes: 64 << 20, Files: 1000})
			m := mounted(t, path)
			held := heldOf(t, m)
			if err := Check(t.Context(), path, m, held); err != nil {
				t.Fatalf("before: %v", err)
			}
			loseWrite(t, d, m)
			first := checkFailed(t, "check", Check(t.Context(), path, m, held))
			for range 2 {
				again := checkFailed(t, "check again", Check(t.Context(), path, m, held))
				if !again.Time.Equal(first.Time) || !errors.Is(again, first.Err) {
					t.Errorf("%v, then %v", first, again)
				}
			}
			other := filepath.Join(d.path, "b.img")
			if err := os.Link(path, other); err != nil {
				t.Fatal(err)
			}
			checkFailed(t, "another name", Failure(other))
		})
	}
}

// The mark is written while there is no room for anything.
func TestFailureIsRecordedOnAFullDisk(t *testing.T) {
	for _, fsType := range hostFileSystems {
		t.Run(fsType, func(t *testing.T) {
			d := hostOn(t, fsType, 500<<20)
			path := d.image(t, "a.img", small)
			fillDisk(t, d)
			if err := Failure(path); err != nil {
				t.Fatal(err)
			}
			if err := record(path, unix.EDQUOT); !errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			if failure := checkFailed(t, "recorded", Failure(path)); failure.Err != unix.EDQUOT {
				t.Error(failure)
			}
		})
	}
}

// Nobody asked before the last mount went, as after PID 1 was killed.
func TestLostWriteIsKnownAtTheNextMount(t *testing.T) {
	if why := testhost.LinuxBefore(t, 6, 15); why != "" { // docs/adr/0011
		t.Skip(why)
	}
	for _, fsType := range []string{"ext4", "xfs"} { // others need room to overwrite the journal
		t.Run(fsType, func(t *testing.T) {
			d := hostOn(t, fsType, 500<<20)
			path := d.image(t, "a.img", Limits{Bytes: 64 << 20, Files: 1000})
			m, err := MountImage(path)
			if err != nil {
				t.Fatal(err)
			}
			loseWrite(t, d, m)
			m.Close()
			m = mounted(t, path)
			checkFailed(t, "mounted again", Check(t.Context(), path, m, nil))
			checkFailed(t, "without a sync", Failure(path))
		})
	}
}

// An image of an older release has no mark.
func TestImageWithoutAMarkIsChecked(t *testing.T) {
	d := hostOn(t, "ext4", 500<<20)
	path := d.image(t, "a.img", Limits{Bytes: 64 << 20, Files: 1000})
	if err := unix.Removexattr(path, markName); err != nil {
		t.Fatal(err)
	}
	m := mounted(t, path)
	held := heldOf(t, m)
	if err := Check(t.Context(), path, m, held); err != nil {
		t.Fatal(err)
	}
	loseWrite(t, d, m)
	checkFailed(t, "check", Check(t.Context(), path, m, held))
	checkFailed(t, "recorded", Failure(path))
}

func TestDamagedMarkIsAFailure(t *testing.T) {
	now := time.Now()
	if err := decodeMark(encodeMark(unfailed, now)); err != nil {
		t.Error(err)
	}
	if n := len(encodeMark("4095", now)); n != markSize {
		t.Errorf("a mark has %d bytes", n)
	}
	for _, mark := range []string{"", "ok", "okay 1", "5", "ok 1 2", "-1 x", "99999999999 1", string(encodeMark("5", now))} {
		if err := decodeMark([]byte(mark)); !errors.Is(err, unix.EIO) {
			t.Errorf("%q: %v", mark, err)
		}
	}
}

// An image that is being removed has no failure: its files are gone.
func TestAbandonedImageIsNoFailure(t *testing.T) {
	d := newData(t)
	path := d.image(t, "a.img", small)
	m := mounted(t, path)
	held := heldOf(t, m)
	if err := Abandon(path, m); err != nil {
		t.Fatal(err)
	}
	if err := Check(t.Context(), path, m, held); !errors.Is(err, ErrAbandoned) {
		t.Error(err)
	}
	if err := Failure(path); err != nil {
		t.Error(err)
	}
}

func BenchmarkFailure(b *testing.B) {
	d := newData(b)
	path := d.image(b, "a.img", small)
	for b.Loop() {
		if err := Failure(path); err != nil {
			b.Fatal(err)
		}
	}
}

// A file's blocks are overwritten in place, and only they find no room: the journal is
// not touched. A kernel without data_err=abort for that goes on as if nothing was.
func TestErrorThatOthersHaveAskedForIsFound(t *testing.T) {
	d := hostOn(t, "tmpfs", 80<<20)
	path := d.image(t, "a.img", Limits{Bytes: 64 << 20, Files: 1000})
	image, err := os.OpenFile(path, unix.O_RDWR, 0)
	closing(t, image, err)
	if err := allocate(image, 0, 0, 64<<20); err != nil {
		t.Fatal(err)
	}
	device, err := attach(image)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	m, err := mount("ext4", device.Name(), [2]string{"errors", "remount-ro"})
	closing(t, m, err)
	held := heldOf(t, m)
	file, err := os.Create(in(m) + "/file")
	closing(t, file, err)
	content := bytes.Repeat([]byte{1}, 4<<20)
	if _, err := file.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	for _, e := range extentsOf(t, file) {
		const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
		if err := allocate(image, punch, int64(e.physical), int64(e.length)); err != nil {
			t.Fatal(err)
		}
	}
	free := fillDisk(t, d)
	if _, err := file.WriteAt(bytes.Repeat([]byte{2}, len(content)), 0); err != nil {
		t.Fatal(err)
	}
	inside := heldOf(t, m)
	if err := unix.Syncfs(int(inside.Fd())); err == nil {
		t.Fatal("the host's disk has room")
	}
	free()
	if err := TakesWrites(m); err != nil {
		t.Skipf("this kernel has shown it: %v", err)
	}
	if err := unix.Syncfs(int(heldOf(t, m).Fd())); err != nil {
		t.Skipf("this kernel tells it twice: %v", err)
	}
	checkFailed(t, "check", Check(t.Context(), path, m, held))
}

// An extent is where a file lies on its device.
type extent struct{ physical, length uint64 }

// extentsOf asks FS_IOC_FIEMAP (Documentation/filesystems/fiemap.rst).
func extentsOf(t *testing.T, f *os.File) []extent {
	t.Helper()
	const fiemap, most = 0xc020660b, 32
	var request struct {
		start, length                  uint64
		flags, mapped, count, reserved uint32
		extents                        [most]struct {
			logical, physical, length uint64
			_                         [2]uint64
			flags                     uint32
			_                         [3]uint32
		}
	}
	request.length, request.count = 1<<62, most
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fiemap, uintptr(unsafe.Pointer(&request)))
	if errno != 0 || request.mapped == 0 || request.mapped == most {
		t.Fatalf("%d extents: %v", request.mapped, errno)
	}
	var all []extent
	for _, e := range request.extents[:request.mapped] {
		all = append(all, extent{e.physical, e.length})
	}
	return all
}

// allocate is fallocate(2), again after a signal of Go's own.
func allocate(f *os.File, mode uint32, from, size int64) error {
	for {
		if err := unix.Fallocate(int(f.Fd()), mode, from, size); err != unix.EINTR {
			return err
		}
	}
}
