package store

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/fsmount"
	blockstore "github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
)

// Mount makes a detached mount of the image: read-only, nosuid and nodev. Each mount has a page cache of its
// own, so the caller should use one mount for all sandboxes of the image. The caller closes the file. The
// mount needs none of the other files. The error is an [errors.ErrUnsupported] if the host cannot mount an
// index.
func (h *Held) Mount() (*os.File, error) {
	operation := "mount image " + string(h.Image.ID)
	if err := checkIndex(h.Index, h.Layers); err != nil {
		return nil, during(operation, err)
	}
	m, err := h.mountFiles()
	if errors.Is(err, unix.ENOTBLK) { // before Linux 6.12, or without CONFIG_EROFS_FS_BACKED_BY_FILE
		m, err = h.mountDevices()
	}
	if errors.Is(err, unix.ENODEV) {
		err = &blockstore.UnsupportedError{Lacks: "this kernel has no EROFS", Way: "load its module"}
	}
	return m, during(operation, err)
}

// mountFiles mounts the files as they are. Linux 6.12. With direct I/O the kernel caches the pages of files once, not
// twice, and reads them in half of the time. Some kernels lack the option.
func (h *Held) mountFiles() (*os.File, error) {
	if allowDirect(append([]*os.File{h.Index}, h.Layers...)) {
		if m, err := mount(h.Index, h.Layers, [2]string{"directio", ""}); err == nil {
			return m, nil
		}
	}
	return mount(h.Index, h.Layers)
}

// fileAlignment is the alignment of the files in an archive (tar(5)), in bytes.
const fileAlignment = 512

// allowDirect says whether direct I/O works at each file of an archive. statx(2), Linux 6.1.
func allowDirect(files []*os.File) bool {
	for _, f := range files {
		var st unix.Statx_t
		err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
		if err != nil || st.Mask&unix.STATX_DIOALIGN == 0 || st.Dio_offset_align == 0 || st.Dio_offset_align > fileAlignment {
			return false
		}
	}
	return true
}

// mountDevices mounts the files by loop devices. The kernel frees the devices after the last mount.
func (h *Held) mountDevices() (m *os.File, err error) {
	var devices []*os.File
	defer func() { descriptor.Close(devices...) }()
	for _, f := range append([]*os.File{h.Index}, h.Layers...) {
		device, err := blockstore.AttachReadOnly(f)
		if err != nil {
			return nil, fmt.Errorf("attach %s: %w", f.Name(), err)
		}
		devices = append(devices, device)
	}
	return mount(devices[0], devices[1:])
}

func mount(source *os.File, devices []*os.File, more ...[2]string) (*os.File, error) {
	options := append([][2]string{{"ro", ""}}, more...)
	for _, d := range devices {
		options = append(options, [2]string{"device", descriptorPath(d)})
	}
	fs, err := fsmount.Open("erofs", descriptorPath(source), options...)
	if err != nil {
		return nil, err
	}
	defer fs.Close()
	fd, err := fs.MountWith(unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), source.Name()), nil
}

// descriptorPath is a path to an open file of this process.
func descriptorPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
