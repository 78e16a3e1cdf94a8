package store

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// withQuotas mounts an ext4 with project quotas, enforced or only counted.
func withQuotas(t testing.TB, options ...[2]string) *os.File {
	t.Helper()
	path := filepath.Join(newData(t).path, "quota.img")
	image, err := os.OpenFile(path, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if err := image.Truncate(64 << 20); err != nil {
		t.Fatal(err)
	}
	mkfs := exec.Command("/usr/sbin/mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "project,quota", "-E", "quotatype=prjquota", path)
	if out, err := mkfs.CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	device, err := attach(image)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	f, err := mount("ext4", device.Name(), options...)
	if errors.Is(err, unix.EINVAL) { // CONFIG_QUOTA or CONFIG_QFMT_V2, it tells the log
		t.Skip("this kernel has no quotas of ext4")
	}
	return closing(t, f, err)
}

func directory(t testing.TB, path string) *os.File {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(path)
	return closing(t, dir, err)
}

func limit(t testing.TB, dir *os.File, l Limits) {
	t.Helper()
	if err := LimitDirectory(dir, l); err != nil {
		t.Fatal(err)
	}
}

// heldByQuotas makes this thread one that quotas hold for, until the test ends.
func heldByQuotas(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test's goroutine
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	sets[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
	if err := unix.Capset(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
}

func TestDirectoryHoldsItsLimits(t *testing.T) {
	host := in(withQuotas(t, [2]string{"prjquota", ""}))
	one, other := directory(t, host+"/one"), directory(t, host+"/other")
	limit(t, one, Limits{Bytes: 4 << 20, Files: 100})
	limit(t, other, Limits{Bytes: 8 << 20, Files: 200})
	heldByQuotas(t)
	below := host + "/one/below"
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	if written, err := fill(t, below+"/file", 16<<20); !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) || written > 4<<20 {
		t.Errorf("a directory of 4 MiB took %d bytes: %v", written, err)
	}
	if made, err := create(host+"/other", 300); err == nil || made != 199 {
		t.Errorf("a directory of 200 files, itself among them, took %d more: %v", made, err)
	}
	limit(t, one, Limits{Bytes: 16 << 20, Files: 100})
	if written, err := fill(t, below+"/more", 8<<20); err != nil {
		t.Errorf("with higher limits: %d bytes, %v", written, err)
	}
}

// What belongs to others is not counted, though they have the number it would get.
func TestDirectorySharesItsProjectWithNobody(t *testing.T) {
	host := in(withQuotas(t, [2]string{"prjquota", ""}))
	one := directory(t, host+"/one")
	taken, err := freeProject(one)
	if err != nil {
		t.Fatal(err)
	}
	others := directory(t, host+"/others")
	if err := setAttributes(others, fileAttributes{project: taken, flags: inheritProject}); err != nil {
		t.Fatal(err)
	}
	if _, err := create(host+"/others", 10); err != nil {
		t.Fatal(err)
	}
	limit(t, one, Limits{Bytes: 1 << 20, Files: 5})
	heldByQuotas(t)
	if _, err := create(host+"/others", 20); err != nil {
		t.Errorf("another's directory has the limits, too: %v", err)
	}
}

func TestDirectoryWithoutQuotasIsUnsupported(t *testing.T) {
	const counted = "counted"
	for name, host := range map[string]func(testing.TB) *os.File{
		"tmpfs": func(t testing.TB) *os.File { return memory(t, small) },
		"image": func(t testing.TB) *os.File { return mounted(t, newData(t).image(t, "a.img", small)) },
		counted: func(t testing.TB) *os.File { return withQuotas(t) },
	} {
		t.Run(name, func(t *testing.T) {
			err := LimitDirectory(directory(t, in(host(t))+"/dir"), small)
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "mounted with prjquota") {
				t.Errorf("%v", err)
			}
			if name == counted && !strings.Contains(err.Error(), "does not enforce") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestLimitsShow(t *testing.T) {
	mounted := withQuotas(t, [2]string{"prjquota", ""})
	host := in(mounted)
	dir := directory(t, host+"/dir")
	if IsLimited(dir) || IsLimited(mounted) {
		t.Error("without a limit there is one")
	}
	limit(t, dir, small)
	if _, err := create(host+"/dir", 1); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(host + "/dir/0")
	closing(t, file, err)
	if !IsLimited(dir) || !IsLimited(file) {
		t.Errorf("directory limited: %v, file: %v", IsLimited(dir), IsLimited(file))
	}
	a, err := getAttributes(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := setQuota(dir, a.project, Limits{Bytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if IsLimited(dir) {
		t.Error("without a limit of files it is limited")
	}
	if IsLimited(directory(t, in(memory(t, small))+"/dir")) {
		t.Error("a tmpfs is limited")
	}
}

// Limits that would be another directory's, or not count what is there, are refused.
func TestDirectoryThatCannotHaveItsOwnLimits(t *testing.T) {
	host := in(withQuotas(t, [2]string{"prjquota", ""}))
	all := directory(t, host+"/all")
	limit(t, all, Limits{Bytes: 8 << 20, Files: 100})
	if err := LimitDirectory(directory(t, host+"/all/one"), small); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "shares project") {
		t.Errorf("in one that has limits: %v", err)
	}
	full := directory(t, host+"/full")
	if _, err := create(host+"/full", 1); err != nil {
		t.Fatal(err)
	}
	if err := LimitDirectory(full, small); err == nil || !strings.Contains(err.Error(), "while it is empty") {
		t.Errorf("one with a file: %v", err)
	}
	if IsLimited(full) {
		t.Error("what was refused is limited")
	}
}
