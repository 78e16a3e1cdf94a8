package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/store"
)

// A coldDisk is an ext4 file system in a file. Its next mount has nothing in the page cache. The mount is in the bench's
// mount namespace, and its loop device ends with the mount.
type coldDisk struct{ file, dir string }

const coldDiskSize = 1 << 30

func makeColdDisk(file, dir string) (*coldDisk, error) {
	d := &coldDisk{file, dir}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	return d, errors.Join(f.Truncate(coldDiskSize), f.Close(), os.Mkdir(dir, 0o755),
		capture(exec.Command("mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=0", file)), d.mount())
}

func (d *coldDisk) mount() error { return capture(exec.Command("mount", "-o", "loop", d.file, d.dir)) }

func (d *coldDisk) unmount() (err error) {
	for range 500 { // the kernel ends the use of a mount's files after their close
		if err = unix.Unmount(d.dir, 0); !errors.Is(err, unix.EBUSY) {
			return os.NewSyscallError("umount", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return os.NewSyscallError("umount", err)
}

// cool takes the content out of the page cache.
func (d *coldDisk) cool() error {
	if err := d.unmount(); err != nil {
		return err
	}
	f, err := os.Open(d.file)
	if err != nil {
		return err
	}
	defer f.Close()
	// Dirty pages would stay.
	if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		return err
	}
	return d.mount()
}

// reads compares first reads from an image with those from ext4. The image and the unpacked files are on one disk.
func (w *imageWork) reads(out io.Writer, o options) (err error) {
	const unpacked, ours = "files on ext4, unpacked by umoci", "files of a mounted image"
	d, err := makeColdDisk(w.in("disk"), w.in("mounted"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.unmount()) }()
	layout, err := w.importedLayout()
	if err != nil {
		return err
	}
	data, bundle := filepath.Join(d.dir, "data"), filepath.Join(d.dir, "bundle")
	if err := errors.Join(capture(w.command(data, "image", "import", "oci:"+layout.dir, "--name", "read")),
		capture(w.tool("umoci", "unpack", "--image", layout.dir+":"+imageTag, bundle))); err != nil {
		return err
	}
	names := sampleNames(fewFiles)
	direct := func() (time.Duration, error) {
		if err := d.cool(); err != nil {
			return 0, err
		}
		return readAll(filepath.Join(bundle, "rootfs"), names)
	}
	mounted := func() (took time.Duration, err error) {
		if err := d.cool(); err != nil {
			return 0, err
		}
		tree, err := mountImage(filepath.Join(data, "images"), "docker.io/library/read:latest")
		if err != nil {
			return 0, err
		}
		defer tree.Close()
		return readAll(fmt.Sprintf("/proc/self/fd/%d", tree.Fd()), names)
	}
	return runCold(contest{
		title: "First reads",
		about: fmt.Sprintf("%d of %d files, %d bytes each, in one random order, from a file system on a loop device with a cold cache.", fewFiles, importedFiles, importedSize),
		unit:  "ms", base: unpacked, rounds: max(o.rounds/20, 2), measure: clocked,
		peers:  []peer{{name: unpacked, version: "ext4", clock: direct}, {name: ours, version: "this tree's", clock: mounted}},
		bounds: []bound{{ours, unpacked, 1.2}},
	}, out, o)
}

// mountImage mounts an image of root.
func mountImage(dir, name string) (tree *os.File, err error) {
	const by = "bench"
	s, err := store.Open(context.Background(), dir)
	if err != nil {
		return nil, err
	}
	held, err := s.For(0).Use(context.Background(), name, by)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	tree, err = held.Mount()
	return tree, errors.Join(err, s.ReleaseAll(context.Background(), by))
}

// sampleNames are some files of the imported image, in an order that is the same in each run.
func sampleNames(n int) (names []string) {
	const perLayer = importedFiles / importedLayers
	random := rand.New(rand.NewPCG(1, 2))
	for _, i := range random.Perm(importedFiles)[:n] {
		names = append(names, fileName(importedDir(i/perLayer), i%perLayer))
	}
	return names
}

// readAll reads files to their end.
func readAll(dir string, names []string) (time.Duration, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	buffer := make([]byte, 64<<10)
	begin := time.Now()
	for _, name := range names {
		f, err := root.Open(name)
		if err != nil {
			return 0, err
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buffer)
		f.Close()
		if err == nil && n != importedSize {
			err = fmt.Errorf("%s has %d bytes", name, n)
		}
		if err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}
