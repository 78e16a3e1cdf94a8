package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/trash"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// onDisk is a configuration with a small store on disk.
var onDisk = spec.Config{Storage: spec.StorageDisk, Limits: spec.Limits{Disk: 64 << 20}}

// imagesIn are the files below a directory that have a loop device.
func imagesIn(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	var in []string
	for _, name := range all {
		if file, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(file), dir+"/") {
			in = append(in, strings.TrimSpace(string(file)))
		}
	}
	return in
}

// checkNoImage holds that of no sandbox an image, or a loop device, is left.
func checkNoImage(t *testing.T, l *Launcher) {
	t.Helper()
	if images, err := l.Images(); err != nil || len(images) > 0 {
		t.Errorf("images are left: %q, %v", images, err)
	}
	eventually(t, "the trash is empty and no loop device is left", func() bool {
		trash, err := os.ReadDir(filepath.Join(l.Data, trash.TrashName))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return len(trash) == 0 && len(imagesIn(t, l.Data)) == 0
	})
}

func recordOf(t *testing.T, l *Launcher, id string) record.Record {
	t.Helper()
	r, err := record.Read(l.Dir(id))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWhatOutlivesItsMakerIsOnDisk(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	r := recordOf(t, l, "box")
	if r.Config.Storage != spec.StorageDisk || r.Config.Limits.Disk != 1<<30 || len(r.Notes) > 0 {
		t.Errorf("a sandbox that is up has storage %q, disk %s, notes %q", r.Config.Storage, r.Config.Limits.Disk, r.Notes)
	}
	if result, out := sh(t, sb, "id -u > file; echo in /workspace"); !result.OK() {
		t.Fatalf("%+v %s", result, out.stderr)
	}
	// The image is mounted a second time, and has the ids of the inside.
	f, err := store.MountImage(l.ImagePath(r.Image))
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/proc/self/fd/%d/area/workspace/file", f.Fd())
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Uid != r.Config.User.UID {
		t.Errorf("the file is user %d's, %v", st.Uid, err)
	}
	f.Close()
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	checkNoImage(t, l)

	tied, err := createTied(t.Context(), l, spec.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer tied.Close()
	if r := recordOf(t, l, tied.ID()); r.Config.Storage != spec.StorageMemory || r.Image != "" {
		t.Errorf("one that ends with its maker: storage %q, image %q", r.Config.Storage, r.Image)
	}
}

// Whatever is written to, and however, ENOSPC is all that happens.
func TestDiskLimitsHold(t *testing.T) {
	l := newTestLauncher(t)
	shown := t.TempDir()
	c := onDisk
	c.Overlays = []string{shown}
	c.Limits.FileSize = 1 << 30
	for _, dir := range []string{"/workspace", "/tmp", "~", shown} {
		sb := createUp(t, l, "", c)
		for _, write := range []string{"head -c 200m /dev/zero > ", "dd bs=1M count=200 if=/dev/zero > "} {
			r, out := sh(t, sb, write+dir+"/big")
			if r.OK() || len(r.Violations) != 1 || r.Violations[0].Detail != "disk limit of 64m reached (raise it with --disk)" || !strings.Contains(out.stderr, "No space left") {
				t.Errorf("bytes in %s, with %q: %+v, %s", dir, write, r, out.stderr)
			}
		}
		r, out := sh(t, sb, "rm "+dir+"/big && cd "+dir+" && i=0; while [ $i -lt 9000 ]; do : > many$i || exit 1; i=$((i+1)); done")
		if r.OK() || len(r.Violations) != 1 || r.Violations[0].Detail != "limit of 8192 files reached (raise it with --files)" {
			t.Errorf("files in %s: %+v, %s", dir, r, out.stderr)
		}
		var st unix.Stat_t
		image := l.ImagePath(recordOf(t, l, sb.ID()).Image)
		if err := unix.Stat(image, &st); err != nil || st.Blocks*512 > 65<<20 {
			t.Errorf("on the host it takes %d bytes, %v", st.Blocks*512, err)
		}
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
	}
	checkNoImage(t, l)
}

// newSmallLauncher is newTestLauncher with the data directory on a small disk.
func newSmallLauncher(t *testing.T, bytes int64) (*Launcher, *os.File) {
	t.Helper()
	testhost.NeedRoot(t, "mounts")
	host, err := store.Memory(store.Limits{Bytes: bytes, Files: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	data := fmt.Sprintf("/proc/self/fd/%d/data", host.Fd()) // which is /data, where sandboxes have nothing
	return newTestLauncherIn(t, data), host
}

func TestHostWithoutRoomKeepsWritesInMemory(t *testing.T) {
	l, _ := newSmallLauncher(t, 100<<20)
	createUp(t, l, "box", spec.Config{})
	r := recordOf(t, l, "box")
	if r.Config.Storage != spec.StorageMemory || r.Config.Limits.Disk != 768<<20 || r.Image != "" {
		t.Errorf("storage %q, disk %s, image %q", r.Config.Storage, r.Config.Limits.Disk, r.Image)
	}
	if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, "768m of memory, not on disk") || !strings.Contains(notes, "make room") {
		t.Errorf("notes: %q", r.Notes)
	}
	for want, c := range map[string]spec.Config{
		"no space left on device":  {Storage: spec.StorageDisk},
		"ext4 with a journal":      {Storage: spec.StorageDisk, Limits: spec.Limits{Disk: 4 << 20}},
		"raise that with --memory": {Limits: spec.Limits{Disk: 2 << 30}},
	} {
		if _, err := l.Create(t.Context(), protocol.Create{Config: c}, Sources{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	if ids, err := l.parts.KnownIDs(); err != nil || len(ids) != 1 {
		t.Errorf("left of what was refused: %q, %v", ids, err)
	}
}

func TestHostWithoutImagesKeepsWritesInMemory(t *testing.T) {
	other := filepath.Join(t.TempDir(), "mkfs")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ what, instead, want string }{
		{"/usr/sbin/mkfs.ext4", other, "install e2fsprogs"},
		{"/dev/loop-control", "/dev/null", "load the loop module, and in a container allow them"},
	} {
		t.Run(filepath.Base(test.what), func(t *testing.T) {
			l := newTestLauncher(t)
			container.PinCgroupfs() // not on the thread that ends
			runtime.LockOSThread()  // never unlocked: the thread ends with the test's goroutine
			if err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount(test.instead, test.what, "", unix.MS_BIND, "")); err != nil {
				t.Fatal(err)
			}
			_, err := l.Create(t.Context(), protocol.Create{Config: onDisk}, Sources{})
			if !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("asked for: %v", err)
			}
			createUp(t, l, "box", spec.Config{})
			r := recordOf(t, l, "box")
			if r.Config.Storage != spec.StorageMemory || !strings.Contains(strings.Join(r.Notes, "\n"), test.want) {
				t.Errorf("storage %q, notes %q", r.Config.Storage, r.Notes)
			}
			if images, err := l.Images(); err != nil || len(images) > 0 {
				t.Errorf("images are left: %q, %v", images, err)
			}
		})
	}
}

// fillHost takes what room a small disk has.
func fillHost(t *testing.T, host *os.File) {
	t.Helper()
	others, err := os.Create(fmt.Sprintf("/proc/self/fd/%d/others", host.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	for err == nil {
		_, err = others.Write(block(1 << 20))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// The host's disk is full before the sandbox's is.
func TestResultTellsThatTheHostIsFull(t *testing.T) {
	l, host := newSmallLauncher(t, 80<<20)
	sb := createUp(t, l, "box", onDisk)
	fillHost(t, host)
	r, out := sh(t, sb, "head -c 8m /dev/zero > big && sync big")
	if r.OK() || !strings.Contains(r.Reason, "the host's disk is full") || len(r.Violations) != 2 || !strings.Contains(r.Violations[0].Detail, l.Data) || !r.Damaged {
		t.Errorf("%+v %s", r, out.stderr)
	}
}

// What a sandbox has written is not thrown away because it can write no more.
func TestUpKeepsWhatCanOnlyBeRead(t *testing.T) {
	l, host := newSmallLauncher(t, 80<<20)
	sb := createUp(t, l, "box", onDisk)
	if r, _ := sh(t, sb, "echo kept > file; sync"); !r.OK() {
		t.Fatalf("%+v", r)
	}
	upAgain(t, l, "box")
	fillHost(t, host)
	eventually(t, "the journal has no room either", func() bool {
		sh(t, sb, "i=0; while [ $i -lt 100 ] && mkdir -p $i/$i; do i=$((i+1)); done; sync; rm -rf [0-9]*; sync")
		return errors.Is(sb.takesWrites(), errReadOnly)
	})
	for _, paused := range []bool{false, true} {
		if paused {
			if err := sb.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		again, err := l.Create(t.Context(), protocol.Create{Name: "box", Reuse: true}, Sources{})
		if err == nil {
			again.Release()
		}
		var of *fault.SandboxError
		if !errors.Is(err, fault.ErrUnavailable) || !errors.As(err, &of) || of.ID != "box" || !errors.Is(err, fault.ErrDamaged) || !strings.Contains(err.Error(), "check each of them") {
			t.Errorf("paused %v: %v", paused, err)
		}
	}
	if err := sb.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, out := sh(t, sb, "cat file"); !r.OK() || out.stdout != "kept\n" {
		t.Errorf("%+v, %q", r, out)
	}
	// Somebody has removed the image's name.
	if err := os.Remove(l.ImagePath(sb.session.Current().Image)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := l.Create(ctx, protocol.Create{Name: "box", Reuse: true}, Sources{}); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("up without an image: %v", err)
	}
	if err := sb.Verify(ctx, true); !errors.Is(err, fault.ErrDamaged) || !strings.Contains(err.Error(), "are gone") {
		t.Errorf("verify without an image: %v", err)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	checkNoImage(t, l)
}

func TestPruneRemovesImagesOfNobody(t *testing.T) {
	l := newTestLauncher(t)
	alive := createUp(t, l, "alive", onDisk)
	dead := createUp(t, l, "dead", onDisk)
	killInit(t, dead)
	// Of a launcher that was killed, or of an earlier boot.
	lost := l.ImagePath(l.ImagePrefix("lost") + "AAAA" + record.ImageEnd)
	if err := store.CreateImage(lost, store.Limits{Bytes: 16 << 20, Files: 1000}, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	// Of a launcher with another state root.
	foreign := l.ImagePath("0123456789ab-box@AAAA.img")
	if err := os.WriteFile(foreign, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	// What a launcher could not finish removing.
	trash, err := statedir.OpenData(l.Data, trash.TrashName)
	if err != nil {
		t.Fatal(err)
	}
	defer trash.Close()
	if err := errors.Join(os.MkdirAll(trash.Name()+"/tree/below", 0o700), os.WriteFile(trash.Name()+"/x.img", block(1<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	pruned, err := l.Prune(t.Context())
	if err != nil || strings.Join(pruned, " ") != "dead lost" {
		t.Errorf("pruned %q, %v", pruned, err)
	}
	if left, err := trash.ReadDir(-1); err != nil || len(left) > 0 {
		t.Errorf("in the trash: %v, %v", left, err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
	if images, err := l.Images(); err != nil || len(images) != 1 || !strings.Contains(images[0], "-alive@") {
		t.Errorf("images: %q, %v", images, err)
	}
	if r, _ := sh(t, alive, "echo hello > file && sync file"); !r.OK() {
		t.Errorf("%+v", r)
	}
	if err := alive.Close(); err != nil {
		t.Fatal(err)
	}
	checkNoImage(t, l)
}

func block(n int) []byte { return make([]byte, n) }

// A launcher that is about to end waits for no removal, and the next one's goes on.
func TestNextLauncherFinishesTheRemoval(t *testing.T) {
	first := newTestLauncher(t)
	sb := createUp(t, first, "box", onDisk)
	first.sweeper.Stop()
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if images, err := first.Images(); err != nil || len(images) > 0 {
		t.Errorf("a removed sandbox has the images %q, %v", images, err)
	}
	if left, err := os.ReadDir(filepath.Join(first.Data, trash.TrashName)); err != nil || len(left) != 1 {
		t.Errorf("in the trash: %v, %v", left, err)
	}
	next, err := New(Dirs{State: first.State, Data: first.Data})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	createUp(t, next, "another", spec.Config{Storage: spec.StorageMemory})
	checkNoImage(t, next)
}

// Who ends a sandbox does not wait until what it wrote is on disk, but it is if
// somebody else refers to it.
func TestRemovedSandboxIsNotWrittenToDisk(t *testing.T) {
	l := newTestLauncher(t)
	unwritten := false
	for i, kept := range []bool{false, false, false, true} {
		if unwritten && !kept { // else again: the kernel may have had reasons of its own to write
			continue
		}
		c := onDisk
		c.Limits = spec.Limits{Disk: 256 << 20}
		sb := createUp(t, l, "box", c)
		if r, _ := sh(t, sb, "head -c 60m /dev/urandom > file"); !r.OK() {
			t.Fatalf("%+v", r)
		}
		image := l.ImagePath(recordOf(t, l, "box").Image)
		other := image + ".kept"
		if kept {
			if err := os.Link(image, other); err != nil {
				t.Fatal(err)
			}
		}
		held, err := os.Open(image)
		if err != nil {
			t.Fatal(err)
		}
		if !kept {
			l.sweeper.Stop() // or it has no bytes
		}
		started := time.Now()
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
		t.Logf("removed within %v", time.Since(started))
		written := func() int64 {
			var st unix.Stat_t
			if err := unix.Fstat(int(held.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			return st.Blocks * 512
		}
		unwritten = written() <= 60<<20
		t.Logf("referred to: %v; %d bytes were written", kept, written())
		if kept {
			// The kernel writes when the last mount goes.
			testhost.Eventually(t, "what somebody refers to is on disk", func() bool { return written() > 60<<20 })
			f, err := store.MountImage(other)
			if err != nil {
				t.Fatal(err)
			}
			if st, err := os.Stat(fmt.Sprintf("/proc/self/fd/%d/area/workspace/file", f.Fd())); err != nil || st.Size() != 60<<20 {
				t.Errorf("what somebody refers to: %v, %v", st, err)
			}
			f.Close()
		} else if i == 2 && !unwritten {
			t.Error("what nobody refers to is written to disk each time")
		}
		held.Close()
	}
	if _, err := l.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Who makes one sandbox after the other, and holds on to the changes of each, fills
// no more of the host than one may.
func TestHeldChangesKeepNoRoom(t *testing.T) {
	t.Run("sandbox", func(t *testing.T) {
		l := newTestLauncher(t)
		sb, image, _ := wroteMuch(t, l)
		trees, err := layersOf(t, sb, true)
		if err != nil {
			t.Fatal(err)
		}
		defer closeTrees(trees)
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
		checkNoRoom(t, image)
	})
	t.Run("snapshot", func(t *testing.T) {
		if reason := layersOfAnywhere(t); reason != "" {
			t.Skip(reason)
		}
		l := newTestLauncher(t)
		sb, image, c := wroteMuch(t, l)
		const name = "named-as-an.img"
		if err := sb.Snapshot(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		fork := forkOf(t, l, name, c)
		trees, err := layersOf(t, fork, true)
		if err != nil {
			t.Fatal(err)
		}
		defer closeTrees(trees)
		if err := errors.Join(sb.Close(), fork.Close()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the snapshot has the image's last name", func() bool {
			trash, err := os.ReadDir(filepath.Join(l.Data, trash.TrashName))
			return err == nil && len(trash) == 0
		})
		if err := l.RemoveSnapshot(t.Context(), name, 0); err != nil {
			t.Fatal(err)
		}
		checkNoRoom(t, image)
	})
}

// wroteMuch is a sandbox with 30 MiB on its layer, and its image.
func wroteMuch(t *testing.T, l *Launcher) (*Sandbox, *os.File, spec.Config) {
	t.Helper()
	dir := t.TempDir()
	c := onDisk
	c.Overlays = []string{dir}
	sb := createUp(t, l, "box", c)
	if r, _ := sh(t, sb, "head -c 30m /dev/urandom > "+dir+"/file; sync"); !r.OK() {
		t.Fatalf("%+v", r)
	}
	image, err := os.Open(l.ImagePath(recordOf(t, l, "box").Image))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { image.Close() })
	return sb, image, c
}

func closeTrees(trees []layer.Overlay) {
	for _, tree := range trees {
		tree.Close()
	}
}

// checkNoRoom holds that a removed image takes no room, though it is open.
func checkNoRoom(t *testing.T, image *os.File) {
	t.Helper()
	eventually(t, "the image has no room", func() bool {
		var st unix.Stat_t
		err := unix.Fstat(int(image.Fd()), &st)
		return err == nil && st.Nlink == 0 && st.Blocks*512 < 1<<20
	})
}
