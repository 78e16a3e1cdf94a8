package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/fsmount"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A disk is a small file system, whose bounds can change.
type disk struct {
	*testing.T
	mount *os.File
}

// manyPages and manyFiles are more than a test needs.
const (
	manyPages = 10000
	manyFiles = 10000
)

func newDisk(t *testing.T) disk {
	t.Helper()
	testhost.NeedRoot(t, "a file system is mounted")
	fs, err := fsmount.Open("tmpfs", "disk", [2]string{"nr_inodes", strconv.Itoa(manyFiles)}, [2]string{"nr_blocks", strconv.Itoa(manyPages)})
	if err != nil {
		t.Fatal(err)
	}
	defer fs.Close()
	fd, err := fs.Mount()
	if err != nil {
		t.Fatal(err)
	}
	d := disk{t, os.NewFile(uintptr(fd), "disk")}
	testhost.CloseAfter(t, d.mount)
	// No bound of pages means that there is none.
	testhost.WriteFile(t, filepath.Join(descriptorPath(d.mount), "filler"), "filler")
	return d
}

// resize sets the bounds of the disk.
func (d disk) resize(files, pages uint64) {
	d.Helper()
	fd, err := unix.Fspick(int(d.mount.Fd()), "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		d.Fatal(err)
	}
	defer unix.Close(fd)
	for option, value := range map[string]uint64{"nr_inodes": files, "nr_blocks": pages} {
		if err := unix.FsconfigSetString(fd, option, strconv.FormatUint(value, 10)); err != nil {
			d.Fatal(err)
		}
	}
	if err := unix.FsconfigReconfigure(fd); err != nil {
		d.Fatalf("%d files and %d pages: %v", files, pages, err)
	}
}

func (d disk) used() (files, pages uint64) {
	d.Helper()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.mount.Fd()), &st); err != nil {
		d.Fatal(err)
	}
	return st.Files - st.Ffree, st.Blocks - st.Bfree
}

// An operation on a full disk fails in one line, or succeeds. It leaves nothing half-made, and with more space
// it succeeds. The tests give each operation one more file, or one more page, until it succeeds.
func TestOnAFullDiskTheStoreIsWhole(t *testing.T) {
	for operation := range operations() {
		for _, bound := range []string{"files", "pages"} {
			t.Run(operation+", "+bound, func(t *testing.T) {
				d := newDisk(t)
				o := newOrdeal(t, operation)
				o.dir = filepath.Join(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), d.mount.Fd()), "store")
				o.Store.dir = o.dir
				failed := 0
				for free := uint64(0); d.fails(o, bound, free); free++ {
					failed++
				}
				t.Logf("failed with up to %d free %s", failed, bound)
				needsNone := slices.Contains([]string{"remove", "prune", "release"}, operation)
				if needsNone && failed > 0 {
					t.Errorf("needs %d free %s", failed, bound)
				}
				if !needsNone && failed == 0 {
					t.Error("never failed")
				}
			})
		}
	}
}

// fails does the operation with so much free space, and says whether the operation fails. Then it checks the
// store with more space.
func (d disk) fails(o *ordeal, bound string, free uint64) bool {
	d.Helper()
	o.reset()
	before := contents(o.dir)
	files, pages := d.used()
	if bound == "files" {
		d.resize(files+free, manyPages)
	} else {
		d.resize(manyFiles, pages+free)
	}
	err := o.repeat()
	d.resize(manyFiles, manyPages)
	when := fmt.Sprintf("with %d free %s", free, bound)
	if err == nil {
		o.check(when)
		return false
	}
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "no space left on device; remove images") {
		d.Errorf("%s: %v", when, err)
	}
	checkLine(d.T, err)
	after := contents(o.dir)
	if o.operation != "open" && !slices.Equal(before, after) {
		d.Errorf("%s: %v\nleft are %q\nnot %q", when, err, after, before)
	}
	if !d.Failed() {
		o.check(when)
	}
	return !d.Failed()
}
