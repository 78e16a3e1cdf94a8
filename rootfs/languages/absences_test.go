package languages

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// remembered returns the names that a directory is known to lack.
func remembered(a *Absences, path string) map[string]bool {
	dirs := openDirs(path, a, new(shortage))
	defer dirs[0].close(a)
	return dirs[0].lacks
}

// needTimedDirs skips the test if nothing about a directory is remembered here.
func needTimedDirs(t *testing.T, dir string) {
	t.Helper()
	var fs unix.Statfs_t
	var st unix.Statx_t
	err := errors.Join(unix.Statfs(dir, &fs), unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID_UNIQUE, &st))
	if err != nil || !slices.Contains(timedTypes, fs.Type) || st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		t.Logf("type %#x, %v", fs.Type, err)
		t.Skip("needs Linux 6.8 and a temporary directory on ext4, XFS or F2FS")
	}
}

func TestAbsencesAreRemembered(t *testing.T) {
	dir := t.TempDir()
	bin, dangling, other := dir+"/bin", dir+"/dangling/bin", dir+"/other/bin"
	testhost.Python(t, dir+"/target")
	for _, d := range []string{bin, dangling, other} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	testhost.Symlink(t, dir+"/python", dangling+"/python3")
	testhost.Script(t, other+"/python3", "")
	needTimedDirs(t, dir)
	var a Absences
	begin := time.Now()
	if lookFor(bin, "/nowhere", nil, &a); remembered(&a, bin) != nil && time.Since(begin) < settled/2 {
		t.Error("names of a directory that has just changed are remembered")
	}
	time.Sleep(settled + 100*time.Millisecond)
	for range 2 {
		lookFor(bin+":"+dangling, "/nowhere", nil, &a)
	}
	if names := remembered(&a, bin); !names["python3"] || !names["node"] {
		t.Fatalf("the missing programs are not remembered: %v", names)
	}
	if names := remembered(&a, dangling); names["python3"] || !names["node"] {
		t.Errorf("of a directory with a dangling python3: %v", names)
	}
	found := func(path string) bool { // also in a note
		f := lookFor(path, "/nowhere", nil, &a)
		return len(f.Notes) > 0 && slices.Equal(f.Notes, lookFor(path, "/nowhere", nil, nil).Notes)
	}
	testhost.Symlink(t, dir+"/target/bin/python3", dir+"/python")
	testhost.Script(t, bin+"/node", "")
	if !found(bin) {
		t.Error("a new program is not found")
	}
	if lookFor(dangling, "/nowhere", nil, &a).Path == nil {
		t.Error("the new target of a symbolic link is not found")
	}
	if err := os.Rename(bin, dir+"/away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, bin); err != nil {
		t.Fatal(err)
	}
	if !found(bin) {
		t.Error("the program of another directory in its place is not found")
	}
}

func TestAbsencesAreOfOneMount(t *testing.T) {
	testhost.NeedRoot(t, "a mount is made")
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	needTimedDirs(t, dir)
	bin := dir + "/bin"
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	var a Absences
	known := func() (id dirID) {
		dirs := openDirs(bin, &a, new(shortage))
		defer dirs[0].close(&a)
		return dirs[0].id
	}
	before := known()
	if err := unix.Mount(bin, bin, "", unix.MS_BIND, ""); err != nil { // as a second file system with equal numbers
		t.Fatal(err)
	}
	defer unix.Unmount(bin, unix.MNT_DETACH)
	if after := known(); after == before || after.inode != before.inode {
		t.Errorf("the same directory in two mounts is %v and %v", before, after)
	}
}

func TestAbsencesAreBounded(t *testing.T) {
	var a Absences
	for i := range 3 * mostDirs {
		a.learn(&pathDir{id: dirID{inode: uint64(i)}, missed: []string{"python3"}})
	}
	if len(a.dirs) > mostDirs {
		t.Errorf("%d directories are remembered, more than %d", len(a.dirs), mostDirs)
	}
}

// In an overlay another layer can get the program without a new time of the directory, and a FUSE server may not answer.
func TestOtherFileSystemsAreNotRemembered(t *testing.T) {
	testhost.NeedRoot(t, "mounts are made")
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	for _, d := range []string{"upper/bin", "lower/bin", "merged", "tmp"} {
		if err := os.MkdirAll(dir+"/"+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("overlay", dir+"/merged", "overlay", 0, "lowerdir="+dir+"/upper:"+dir+"/lower"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir+"/merged", unix.MNT_DETACH)
	if err := unix.Mount("tmpfs", dir+"/tmp", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir+"/tmp", unix.MNT_DETACH)
	time.Sleep(settled + 100*time.Millisecond)
	var a Absences
	for _, bin := range []string{dir + "/merged/bin", dir + "/tmp"} {
		lookFor(bin, "/nowhere", nil, &a)
		if names := remembered(&a, bin); names != nil {
			t.Errorf("%s: %v", bin, names)
		}
	}
}
