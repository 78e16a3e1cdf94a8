package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

var small = Limits{Bytes: 16 << 20, Files: 1024}

// A data directory of a test, in which no image has a loop device at its end.
type dataDir struct {
	path, blanks string
}

func newData(t testing.TB) dataDir {
	t.Helper()
	asRoot(t)
	dir := t.TempDir()
	t.Cleanup(func() { checkNoDevice(t, dir) })
	return dataIn(t, dir)
}

// checkNoDevice holds that no image has a loop device. It has one for as long as
// anybody has that open, such as somebody who looks for the device of an image.
func checkNoDevice(t testing.TB, dir string) {
	t.Helper()
	testhost.Eventually(t, "no loop device is left", func() bool { return len(devices(t, dir)) == 0 })
}

func dataIn(t testing.TB, dir string) dataDir {
	t.Helper()
	d := dataDir{dir, filepath.Join(dir, "blank")}
	if err := os.Mkdir(d.blanks, 0o700); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d dataDir) image(t testing.TB, name string, l Limits) string {
	t.Helper()
	path := filepath.Join(d.path, name)
	if err := CreateImage(path, l, d.blanks); err != nil {
		t.Fatal(err)
	}
	return path
}

// devices are the files below a directory that have a loop device.
func devices(t testing.TB, dir string) []string {
	t.Helper()
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	var below []string
	for _, name := range all {
		if of, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(of), dir+"/") {
			below = append(below, strings.TrimSpace(string(of)))
		}
	}
	return below
}

func mounted(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := MountImage(path)
	return closing(t, f, err)
}

func deviceOf(t testing.TB, f *os.File) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Dev
}

// roomOf is what a file takes on its disk.
func roomOf(t testing.TB, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestImageHoldsItsBytes(t *testing.T) {
	path := newData(t).image(t, "a.img", small)
	if room := roomOf(t, path); room > 1<<20 {
		t.Errorf("an empty image takes %d bytes", room)
	}
	f := mounted(t, path)
	before, most := usage(t, f)
	written, err := fill(t, in(f)+"/file", 2*small.Bytes)
	if promised := most.Bytes - before.Bytes; !errors.Is(err, unix.ENOSPC) || written < promised-64<<10 || written > promised {
		t.Errorf("an image of %d bytes with %d free took %d: %v", small.Bytes, promised, written, err)
	}
	if used, total := usage(t, f); total.Bytes > small.Bytes || total.Bytes-used.Bytes > 64<<10 {
		t.Errorf("when it is full, %d of %d bytes are used", used.Bytes, total.Bytes)
	}
	if room := roomOf(t, path); room > small.Bytes+64<<10 { // with what the host's file system needs for it
		t.Errorf("a full image of %d bytes takes %d", small.Bytes, room)
	}
}

func TestImageHoldsItsFiles(t *testing.T) {
	f := mounted(t, newData(t).image(t, "a.img", small))
	made, err := create(in(f), 2*int(small.Files))
	if !errors.Is(err, unix.ENOSPC) || made < int(small.Files)-16 || made > int(small.Files) {
		t.Errorf("an image of %d files took %d: %v", small.Files, made, err)
	}
	if used, total := usage(t, f); used.Files != small.Files || total.Files != small.Files {
		t.Errorf("when it is full, %d of %d files are used", used.Files, total.Files)
	}
}

func TestImageIsDetachedClosedAndEmpty(t *testing.T) {
	old := unix.Umask(0o777)
	defer unix.Umask(old)
	asRoot(t)
	dir := t.TempDir()
	unix.Umask(0o077)
	d := dataIn(t, dir)
	unix.Umask(0o777)
	path := d.image(t, "a.img", small)
	if got, want := modeAndOwner(t, path), "100000 0:0"; got != want {
		t.Errorf("the image is %s, want %s: no more than the umask lets", got, want)
	}
	f := mounted(t, path)
	checkClosed(t, f)
	if entries, err := os.ReadDir(in(f)); err != nil || len(entries) > 0 {
		t.Errorf("a new store holds %v, %v", entries, err)
	}
}

func TestImageKeepsWhatIsWritten(t *testing.T) {
	d := newData(t)
	path := d.image(t, "a.img", small)
	f := mounted(t, path)
	if err := os.WriteFile(in(f)+"/file", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Close()
	checkNoDevice(t, d.path)
	if got, err := os.ReadFile(in(mounted(t, path)) + "/file"); string(got) != "kept" {
		t.Errorf("mounted again: %q, %v", got, err)
	}
}

// Two file systems at work on one image would destroy it. Its name does not
// matter: it may have got another.
func TestImageIsMountedOnce(t *testing.T) {
	d := newData(t)
	path := d.image(t, "a.img", small)
	first := mounted(t, path)
	moved := filepath.Join(d.path, "b.img")
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	second := mounted(t, moved)
	if one, two := deviceOf(t, first), deviceOf(t, second); one != two {
		t.Errorf("one image is on the devices %#x and %#x", one, two)
	}
	first.Close()
	if _, err := create(in(second), 1); err != nil {
		t.Errorf("once the first mount has gone: %v", err)
	}
	if got := devices(t, d.path); len(got) != 1 {
		t.Errorf("devices of a mounted image: %q", got)
	}
}

func TestManyMountAtOnce(t *testing.T) {
	for round := range 4 {
		t.Run(strconv.Itoa(round), mountMany)
	}
}

func mountMany(t *testing.T) {
	d := newData(t)
	const each = 8
	var paths []string
	for i := range each {
		// Half of them are one image.
		paths = append(paths, d.image(t, fmt.Sprintf("%d.img", i), small), filepath.Join(d.path, "0.img"))
	}
	var (
		all    sync.WaitGroup
		mounts = make([]*os.File, len(paths))
		start  = make(chan struct{})
	)
	for i, path := range paths {
		all.Go(func() {
			<-start
			var err error
			if mounts[i], err = MountImage(path); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	all.Wait()
	devices := map[string]map[uint64]bool{}
	used := map[uint64]bool{}
	for i, m := range mounts {
		if m == nil {
			continue
		}
		defer m.Close()
		if devices[paths[i]] == nil {
			devices[paths[i]] = map[uint64]bool{}
		}
		devices[paths[i]][deviceOf(t, m)] = true
		used[deviceOf(t, m)] = true
	}
	for path, of := range devices {
		if len(of) != 1 {
			t.Errorf("%s is on %d devices", path, len(of))
		}
	}
	if len(used) != each {
		t.Errorf("%d images are on %d devices", each, len(used))
	}
}

// Inode numbers are those of a file system.
func TestImagesOfTwoDisksAreTwo(t *testing.T) {
	var mounts, inodes [2]uint64
	for i := range mounts {
		d := dataIn(t, in(memory(t, Limits{Bytes: 64 << 20, Files: 100})))
		path := d.image(t, "a.img", small)
		mounts[i] = deviceOf(t, mounted(t, path))
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		inodes[i] = st.Ino
	}
	if inodes[0] != inodes[1] {
		t.Fatalf("the test is of no use: the images are the inodes %d", inodes)
	}
	if mounts[0] == mounts[1] {
		t.Errorf("two images are on one device")
	}
}

func TestManyMakeTheTemplateAtOnce(t *testing.T) {
	d := newData(t)
	const each = 8
	// What a killed process has left.
	if err := os.WriteFile(filepath.Join(d.blanks, "draft"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range each {
		all.Go(func() {
			if err := CreateImage(filepath.Join(d.path, fmt.Sprintf("%d.img", i)), small, d.blanks); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	entries, err := os.ReadDir(d.blanks)
	if err != nil || len(entries) != 1 || entries[0].Name() != fmt.Sprintf("%d-%d.img", small.Bytes, small.Files) {
		t.Errorf("templates: %v, %v", entries, err)
	}
	for i := range each {
		mounted(t, filepath.Join(d.path, fmt.Sprintf("%d.img", i)))
	}
}

// The mkfs of a killed process goes on, and writes to its own file only.
func TestAnOrphanedDraftIsNoTemplate(t *testing.T) {
	d := newData(t)
	path, draft := filepath.Join(d.blanks, "template"), filepath.Join(d.blanks, "draft")
	if err := os.WriteFile(draft, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	var orphan, made unix.Stat_t
	if err := errors.Join(unix.Stat(draft, &orphan), os.Link(draft, draft+".open"), makeBlank(path, small), unix.Stat(path, &made)); err != nil {
		t.Fatal(err)
	}
	if orphan.Ino == made.Ino {
		t.Error("the template is the file of the killed process")
	}
}

func TestTemplateIsMadeOnce(t *testing.T) {
	d := newData(t)
	path := filepath.Join(d.blanks, "template")
	var first, second unix.Stat_t
	for _, st := range []*unix.Stat_t{&first, &second} {
		if err := errors.Join(makeBlank(path, small), unix.Stat(path, st)); err != nil {
			t.Fatal(err)
		}
	}
	if first.Ino != second.Ino {
		t.Error("who came second made it again")
	}
}

func TestDamagedTemplateIsNotUsed(t *testing.T) {
	d := newData(t)
	template := filepath.Join(d.blanks, fmt.Sprintf("%d-%d.img", small.Bytes, small.Files))
	if err := os.WriteFile(template, make([]byte, small.Bytes), 0o600); err != nil {
		t.Fatal(err)
	}
	err := CreateImage(filepath.Join(d.path, "a.img"), small, d.blanks)
	if err == nil || !strings.Contains(err.Error(), "remove "+template) {
		t.Errorf("an image of zeros: %v", err)
	}
	checkNames(t, d.path, "blank")
}

// Copies of one template are different file systems, and sound ones.
func TestImagesDifferAndAreSound(t *testing.T) {
	d := newData(t)
	var ids [2]unix.Fsid
	for i := range ids {
		path := d.image(t, fmt.Sprint(i), small)
		if super := superOf(t, path); super[0x5c]&4 == 0 {
			t.Error("an image has no journal")
		}
		f := mounted(t, path)
		if _, err := create(in(f), 10); err != nil {
			t.Fatal(err)
		}
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		ids[i] = st.Fsid
		f.Close()
		if out, err := exec.Command("/usr/sbin/e2fsck", "-fn", path).CombinedOutput(); err != nil {
			t.Errorf("e2fsck: %v\n%s", err, out)
		}
	}
	if ids[0] == ids[1] {
		t.Errorf("two images have the file system's id %v", ids[0])
	}
}

func superOf(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	super := make([]byte, superSize)
	if _, err := f.ReadAt(super, superOffset); err != nil {
		t.Fatal(err)
	}
	return super
}

// What is in the file at that moment is what a crash of the host leaves.
func TestSyncedImageSurvivesACrash(t *testing.T) {
	d := newData(t)
	path := d.image(t, "a.img", small)
	f := mounted(t, path)
	for name, sync := range map[string]bool{"before": true, "after": false} {
		if err := os.WriteFile(in(f)+"/"+name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		if sync {
			if err := Sync(path, f); err != nil {
				t.Fatal(err)
			}
			copyFile(t, path, filepath.Join(d.path, "crash.img"))
		}
	}
	crashed := mounted(t, filepath.Join(d.path, "crash.img"))
	if got, err := os.ReadFile(in(crashed) + "/before"); string(got) != "before" {
		t.Errorf("what was synced: %q, %v", got, err)
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := copySparse(out, in); err != nil {
		t.Fatal(err)
	}
}

// Who has it mounted keeps no room, abandoned or not.
func TestRemovedImageGivesItsRoomBack(t *testing.T) {
	d := newData(t)
	for _, abandoned := range []bool{false, true} {
		path := d.image(t, "a.img", Limits{Bytes: 64 << 20, Files: 4096})
		f := mounted(t, path)
		if _, err := fill(t, in(f)+"/file", 32<<20); err != nil {
			t.Fatal(err)
		}
		image, err := os.Open(path)
		closing(t, image, err)
		if abandoned {
			if err := Abandon(path, f); err != nil {
				t.Fatal(err)
			}
		}
		if err := RemoveImage(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		if _, err := create(in(f), 1); !errors.Is(err, unix.EIO) {
			t.Errorf("abandoned %v: used since: %v", abandoned, err)
		}
		if room := roomOf(t, fmt.Sprintf("/proc/self/fd/%d", image.Fd())); room > 1<<20 {
			t.Errorf("abandoned %v: it takes %d bytes", abandoned, room)
		}
		if _, err := MountImage(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("mounted once it is gone: %v", err)
		}
		f.Close()
	}
}

// Who removes it may be killed: another goes on.
func TestImageIsRemovedInSteps(t *testing.T) {
	d := newData(t)
	const size = 1 << 30
	path := d.image(t, "a.img", Limits{Bytes: size, Files: 4096})
	if err := RemoveImage(&doneAfter{Context: t.Context(), steps: 1}, path); err != nil {
		t.Errorf("an image with hardly anything in it takes more than one step: %v", err)
	}
	path = d.image(t, "a.img", Limits{Bytes: size, Files: 4096})
	taken(t, path, 3*shrinkStep)
	ctx := &doneAfter{Context: t.Context(), steps: 2}
	if err := RemoveImage(ctx, path); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Size != size-2*(size/4) {
		t.Errorf("after two steps it has %d bytes, %v", st.Size, err)
	}
	if err := RemoveImage(t.Context(), path); err != nil {
		t.Error(err)
	}
	checkNames(t, d.path, "blank")
}

// taken has an image take so much more room.
func taken(t *testing.T, path string, bytes int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := allocate(f, unix.FALLOC_FL_KEEP_SIZE, 512<<20, bytes); err != nil {
		t.Fatal(err)
	}
}

// doneAfter is done after it was asked a number of times.
type doneAfter struct {
	context.Context
	steps int
}

func (c *doneAfter) Err() error {
	if c.steps--; c.steps < 0 {
		return context.Canceled
	}
	return nil
}

func TestImageWithAnotherNameStaysWhole(t *testing.T) {
	d := newData(t)
	path, other := d.image(t, "a.img", small), filepath.Join(d.path, "b.img")
	if err := os.Link(path, other); err != nil {
		t.Fatal(err)
	}
	f := mounted(t, path)
	if _, err := create(in(f), 5); err != nil {
		t.Fatal(err)
	}
	if err := Abandon(path, f); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := RemoveImage(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(in(mounted(t, other)) + "/4"); err != nil {
		t.Errorf("what the other name had: %v", err)
	}
}

func TestAbandonedImageIsNotWritten(t *testing.T) {
	d := newData(t)
	for n := range 3 { // the kernel may have reasons of its own to write, but not each time
		if written := writtenOfAbandoned(t, d.image(t, fmt.Sprint(n), Limits{Bytes: 256 << 20, Files: 4096})); written <= 32<<20 {
			return
		}
	}
	t.Error("of 64 MiB that were given up more than half is written each time")
}

func writtenOfAbandoned(t *testing.T, path string) int64 {
	t.Helper()
	before := roomOf(t, path)
	f := mounted(t, path)
	if err := os.WriteFile(in(f)+"/file", make([]byte, 64<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Abandon(path, f); err != nil {
		t.Fatal(err)
	}
	if _, err := create(in(f), 1); !errors.Is(err, unix.EIO) {
		t.Errorf("used since: %v", err)
	}
	f.Close()
	return roomOf(t, path) - before
}

func TestImageTakesNoOthersPlace(t *testing.T) {
	d := newData(t)
	path := d.image(t, "a.img", small)
	if err := CreateImage(path, small, d.blanks); !errors.Is(err, os.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	link := filepath.Join(d.path, "link.img")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if f, err := MountImage(link); !errors.Is(err, unix.ELOOP) {
		f.Close()
		t.Errorf("mounted by a link: %v", err)
	}
}

func TestImpossibleImageSaysWhatIsPossible(t *testing.T) {
	d := newData(t)
	for want, l := range map[string]Limits{
		"needs 8 MiB":       {Bytes: 8<<20 - 1, Files: 100},
		"can have 4096":     {Bytes: 8 << 20, Files: 4097},
		"more than 0":       {Bytes: 8 << 20},
		"or make room":      {Bytes: 1 << 50, Files: 100},
		"no space left on ": {Bytes: 1 << 50, Files: 100},
	} {
		err := CreateImage(filepath.Join(d.path, "a.img"), l, d.blanks)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", l, err, want)
		}
	}
	least := Limits{Bytes: 8 << 20, Files: 4096}
	if used, total := usage(t, mounted(t, d.image(t, "least.img", least))); total.Bytes-used.Bytes < 1<<20 {
		t.Errorf("of the smallest image %d bytes of %d are used", used.Bytes, total.Bytes)
	}
	checkNames(t, d.path, "blank", "least.img")
}

func checkNames(t testing.TB, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%s has %q, want %q", dir, got, want)
	}
}

func TestHostWithoutImagesSaysWhatItLacks(t *testing.T) {
	for name, test := range map[string]struct {
		hide func() error
		want string
	}{
		"mkfs": {func() error { return unix.Mount("/dev/null", "/usr/sbin/mkfs.ext4", "", unix.MS_BIND, "") }, "install e2fsprogs"},
		"loop": {func() error { return unix.Mount("tmpfs", "/dev", "tmpfs", 0, "") }, "load the loop module"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", "")
			d := newData(t)
			testhost.PrivateMounts(t)
			if err := test.hide(); err != nil {
				t.Fatal(err)
			}
			err := CreateImage(filepath.Join(d.path, "a.img"), small, d.blanks)
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			checkNames(t, d.path, "blank")
			checkNames(t, d.blanks)
		})
	}
}

// The host's disk is full, by others, before the image is: what was not written
// is known to who syncs, nobody waits for ever, and what remains can be removed.
func TestImageOnAFullDisk(t *testing.T) {
	host := memory(t, Limits{Bytes: 24 << 20, Files: 100})
	d := dataIn(t, in(host))
	f := mounted(t, d.image(t, "a.img", small))
	if _, err := fill(t, d.path+"/others", 32<<20); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the host: %v", err)
	}
	// Before Linux 6.2 a loop device tells no more than that it failed.
	if written, err := fill(t, in(f)+"/file", 4<<20); !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EIO) {
		t.Errorf("%d bytes written and synced: %v", written, err)
	}
	if err := Sync(d.path+"/a.img", f); err == nil {
		t.Error("what could not be written was synced")
	}
	err := CreateImage(d.path+"/b.img", small, d.blanks)
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "make room") {
		t.Errorf("another image: %v", err)
	}
	f.Close()
	if err := RemoveImage(t.Context(), d.path+"/a.img"); err != nil {
		t.Error(err)
	}
	checkNames(t, d.path, "blank", "others")
}

// Who asks for ever new limits does not fill the host with templates.
func TestTemplatesAreBounded(t *testing.T) {
	d := newData(t)
	for i := range 3 * mostBlanks {
		path := filepath.Join(d.blanks, fmt.Sprintf("%d-1.img", i))
		age := time.Now().Add(-time.Duration(i+1) * time.Hour)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, age, age)); err != nil {
			t.Fatal(err)
		}
	}
	d.image(t, "a.img", small)
	left, err := filepath.Glob(d.blanks + "/*.img")
	if err != nil || len(left) != mostBlanks {
		t.Errorf("%d templates are left, %v", len(left), err)
	}
	for _, name := range []string{"0-1.img", fmt.Sprintf("%d-1.img", mostBlanks-2), fmt.Sprintf("%d-%d.img", small.Bytes, small.Files)} {
		if _, err := os.Stat(filepath.Join(d.blanks, name)); err != nil {
			t.Errorf("the newest are not there: %v", err)
		}
	}
}

// Who comes second finds that the name is gone, and that the file has one name: another.
func TestRemovedAtOnceByManyAnImageKeepsItsOtherName(t *testing.T) {
	dir := t.TempDir()
	keeps, goes := filepath.Join(dir, "keeps"), filepath.Join(dir, "goes")
	if err := os.WriteFile(keeps, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		if err := os.Link(keeps, goes); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				if err := RemoveImage(t.Context(), goes); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if text, err := os.ReadFile(keeps); err != nil || string(text) != "kept" {
			t.Fatalf("under its other name there is %q, %v", text, err)
		}
	}
}
