package source

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/inflate"
	fds "github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// maxDepth bounds the directories on a path. Each holds a descriptor while its content is read.
const maxDepth = 500

// openDirectory is the image of a directory of the host. Its tar archive is written once, to a file without a name:
// so the layer cannot change between its digest and its use.
func openDirectory(ctx context.Context, dir string, want platform, c *cache, o Options) (*Image, error) {
	top, err := os.OpenFile(dir, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	out, err := c.temporary()
	if err != nil {
		return nil, err
	}
	image, err := readDirectory(ctx, top, out, want, c, o)
	return withClose(image, err, out.Close)
}

// readDirectory writes the archive of a directory to a file, and returns its image.
func readDirectory(ctx context.Context, top, out *os.File, want platform, c *cache, o Options) (*Image, error) {
	file, err := c.writer(out)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	w := &treeWriter{tar: tar.NewWriter(&limitedWriter{io.MultiWriter(file, sum), o.MaxBytes, o.MaxBytes}), links: map[inode]string{}}
	if err := w.writeTree(ctx, top); err != nil {
		return nil, err
	}
	if err := w.tar.Close(); err != nil {
		return nil, err
	}
	size, err := out.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	digest := digestPrefix + hex.EncodeToString(sum.Sum(nil))
	return oneLayer(want, digest, digest, out, size)
}

type inode struct{ dev, ino uint64 }

// treeWriter writes a directory as a tar archive: in the order of names, with the owners as they are.
type treeWriter struct {
	tar *tar.Writer
	// mount is the id of the directory's mount. Other mounts below become empty directories. Devices cannot tell this:
	// files of one overlay can have several.
	mount uint64
	// links are the first names of files with several names.
	links map[inode]string
}

func (w *treeWriter) writeTree(ctx context.Context, dir *os.File) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return &os.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	var err error
	if w.mount, err = mountID(int(dir.Fd()), ""); err != nil {
		return &os.PathError{Op: "statx", Path: dir.Name(), Err: err}
	}
	if err := w.writeHeader(dir, ".", "", &stat, "./"); err != nil {
		return err
	}
	return w.writeEntries(ctx, dir, "", 0)
}

func (w *treeWriter) writeEntries(ctx context.Context, dir *os.File, prefix string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("more than %d directories on the path %s", maxDepth, line(prefix, 100))
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.writeEntry(ctx, dir, name, path.Join(prefix, name), depth); err != nil {
			return err
		}
	}
	return nil
}

// mountID is the id of the mount that an entry of a directory is on; the directory's without a name.
func mountID(dir int, name string) (uint64, error) {
	var st unix.Statx_t
	const flags = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	err := unix.Statx(dir, name, flags, unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID == 0 {
		err = unix.ENOTSUP
	}
	return st.Mnt_id, err
}

// whiteout begins the names of the marks in a layer that remove files of lower layers.
const whiteout = ".wh."

// writeEntry writes one entry of a directory. An entry that vanished meanwhile is left out.
func (w *treeWriter) writeEntry(ctx context.Context, dir *os.File, name, full string, depth int) error {
	if strings.HasPrefix(name, whiteout) {
		return fmt.Errorf("%s: in a layer, a name that begins with %q removes a file; rename it", line(full, 100), whiteout)
	}
	var stat unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return ignoreVanished("stat", full, err)
	}
	kind := stat.Mode & unix.S_IFMT
	switch kind {
	case unix.S_IFSOCK:
		return nil
	case unix.S_IFREG, unix.S_IFDIR:
	default:
		if mount, err := mountID(int(dir.Fd()), name); err != nil || mount != w.mount {
			return ignoreVanished("statx", full, err)
		}
		return w.writeHeader(dir, name, full, &stat, full)
	}
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	if kind == unix.S_IFDIR {
		flags |= unix.O_DIRECTORY
	}
	fd, err := unix.Openat(int(dir.Fd()), name, flags, 0)
	if err != nil {
		return ignoreVanished("open", full, err)
	}
	f := os.NewFile(uintptr(fd), full)
	defer f.Close()
	if err := unix.Fstat(fd, &stat); err != nil {
		return &os.PathError{Op: "stat", Path: full, Err: err}
	}
	if stat.Mode&unix.S_IFMT != kind {
		return &os.PathError{Op: "read", Path: full, Err: errors.New("the file changed while it was read; try again")}
	}
	mount, err := mountID(fd, "")
	switch {
	case err != nil:
		return &os.PathError{Op: "statx", Path: full, Err: err}
	case kind == unix.S_IFDIR:
		if err := w.writeHeader(dir, name, full, &stat, full+"/"); err != nil || mount != w.mount {
			return err
		}
		return w.writeEntries(ctx, f, full, depth+1)
	case mount != w.mount:
		return nil
	}
	return w.writeFile(ctx, f, dir, name, full, &stat)
}

// ignoreVanished is the error of a look at an entry, but for an entry that is gone.
func ignoreVanished(operation, full string, err error) error {
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &os.PathError{Op: operation, Path: full, Err: err}
}

func (w *treeWriter) writeFile(ctx context.Context, f, dir *os.File, name, full string, stat *unix.Stat_t) error {
	if err := w.writeHeader(dir, name, full, stat, full); err != nil {
		return err
	}
	if stat.Nlink > 1 {
		at := inode{stat.Dev, stat.Ino}
		if first, ok := w.links[at]; ok && first != full {
			return nil // the header says all
		}
	}
	n, err := io.Copy(w.tar, io.LimitReader(&stoppableReader{ctx.Err, f}, stat.Size))
	if err == nil && n < stat.Size {
		err = errors.New("the file shrank while it was read; try again")
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", full, err)
	}
	return nil
}

// writeHeader writes the header of an entry of a directory.
func (w *treeWriter) writeHeader(dir *os.File, name, full string, stat *unix.Stat_t, as string) error {
	h := &tar.Header{
		Format: tar.FormatPAX, Name: as, Mode: int64(stat.Mode &^ unix.S_IFMT), Uid: int(stat.Uid), Gid: int(stat.Gid),
		ModTime: time.Unix(stat.Mtim.Unix()), PAXRecords: map[string]string{},
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		w.setFile(h, full, stat)
	case unix.S_IFDIR:
		h.Typeflag = tar.TypeDir
	case unix.S_IFLNK:
		target, err := fds.ReadLink(int(dir.Fd()), name)
		if err != nil {
			return &os.PathError{Op: "readlink", Path: full, Err: err}
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case unix.S_IFCHR:
		h.Typeflag, h.Devmajor, h.Devminor = tar.TypeChar, int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))
	case unix.S_IFBLK:
		h.Typeflag, h.Devmajor, h.Devminor = tar.TypeBlock, int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	default:
		return &os.PathError{Op: "read", Path: full, Err: errors.New("unknown type of file")}
	}
	if h.Typeflag != tar.TypeLink {
		if err := addXattrs(h, dir, name); err != nil {
			return &os.PathError{Op: "read attributes of", Path: full, Err: err}
		}
	}
	if err := w.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("write %s: %w", full, err)
	}
	return nil
}

func (w *treeWriter) setFile(h *tar.Header, full string, stat *unix.Stat_t) {
	h.Typeflag, h.Size = tar.TypeReg, stat.Size
	if stat.Nlink < 2 {
		return
	}
	at := inode{stat.Dev, stat.Ino}
	if first, ok := w.links[at]; ok {
		h.Typeflag, h.Size, h.Linkname = tar.TypeLink, 0, first
		return
	}
	w.links[at] = full
}

// addXattrs adds the attributes that belong to a file in an image. Labels of the host and overlay's private attributes
// do not.
func addXattrs(h *tar.Header, dir *os.File, name string) error {
	at := "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + name
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(at, list)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	value := make([]byte, 64<<10)
	for _, key := range strings.Split(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		if !imageXattr(key) {
			continue
		}
		n, err := unix.Lgetxattr(at, key, value)
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		h.PAXRecords["SCHILY.xattr."+key] = string(value[:n])
	}
	return nil
}

func imageXattr(key string) bool {
	switch key {
	case "security.capability", "system.posix_acl_access", "system.posix_acl_default":
		return true
	}
	return strings.HasPrefix(key, "user.") && !strings.HasPrefix(key, "user.overlay.")
}

// limitedWriter bounds an archive.
type limitedWriter struct {
	io.Writer
	left, limit int64
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > w.left {
		return 0, &inflate.TooLargeError{Max: w.limit}
	}
	w.left -= int64(len(p))
	return w.Writer.Write(p)
}
