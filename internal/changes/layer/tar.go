package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// TarOptions of an archive.
type TarOptions struct {
	// Prefix is put before each path: where the tree lies below the directory
	// that the archive is meant for. No slash at either end.
	Prefix string
	// More leaves the end of the archive to the next Write to the same writer,
	// which is of another tree.
	More bool
	// LeftOut is told of paths that are not in the archive, if it is not nil.
	LeftOut func(path string, t spec.FileType)
}

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// WriteTar writes the changes of s as a layer of an OCI image: a tar archive whose entries replace those below. There
// ".wh.NAME" stands for a deleted NAME, and ".wh..wh..opq" in a directory for all of its earlier content (image-spec
// v1.1.1 layer.md "Whiteouts").
//
// The archive is in PAX format, with extended attributes as SCHILY.xattr.*, as GNU tar, containerd and Docker have
// them, and with times to the nanosecond. Its entries are in the order of their paths. Devices and sockets are left out,
// and LeftOut gets their paths. A file that an archive cannot have, or not without loss, is an error that names the file.
// After an error the output is not whole.
func WriteTar(w io.Writer, s *Stack, o TarOptions) error {
	a := &archive{tar: tar.NewWriter(w), stack: s, options: o}
	for c, err := range s.Changes(Options{}) {
		if err == nil {
			err = a.add(c)
		}
		if err != nil {
			return err
		}
	}
	if o.More {
		return a.tar.Flush()
	}
	return a.tar.Close()
}

// archive is one that is being written.
type archive struct {
	tar     *tar.Writer
	stack   *Stack
	options TarOptions
	// holes are how much of the files so far is no data on disk.
	holes int64
}

func (a *archive) add(c spec.Change) error {
	for part := range strings.SplitSeq(c.Path, "/") {
		if strings.HasPrefix(part, whiteout) {
			return fmt.Errorf("%q: in a layer of an image, names that begin with %s mark deleted files; rename it, or save a patch", c.Path, whiteout)
		}
	}
	if c.Kind == spec.Deleted {
		dir, name := path.Split(c.Path)
		return a.mark(dir + whiteout + name)
	}
	header, err := a.header(c)
	if header == nil || err != nil {
		return err
	}
	if header.Typeflag == tar.TypeReg {
		return a.file(c.Path, header)
	}
	if err := a.begin(c.Path, header); err != nil {
		return err
	}
	if c.Opaque {
		return a.mark(c.Path + "/" + opaque)
	}
	return nil
}

// mark writes an entry that stands for a deleted path.
func (a *archive) mark(name string) error {
	return a.begin(name, &tar.Header{Typeflag: tar.TypeReg, Name: a.name(name), ModTime: time.Unix(0, 0)})
}

// begin writes the header of an entry.
func (a *archive) begin(name string, h *tar.Header) error {
	h.Format = tar.FormatPAX
	if err := a.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("archive %q: %w", name, err)
	}
	return nil
}

// header is the entry of a path; nil if an archive has none for such.
func (a *archive) header(c spec.Change) (*tar.Header, error) {
	h := &tar.Header{
		Name: a.name(c.Path), Mode: int64(c.Mode), Uid: int(c.UID), Gid: int(c.GID), ModTime: c.ModTime,
	}
	switch {
	case c.Type == spec.TypeSocket, c.Type == spec.TypeDevice:
		if a.options.LeftOut != nil {
			a.options.LeftOut(c.Path, c.Type)
		}
		return nil, nil
	case c.HardLink != "":
		h.Typeflag, h.Linkname = tar.TypeLink, a.name(c.HardLink)
		return h, nil
	case c.Type == spec.TypeFile:
		h.Typeflag, h.Size = tar.TypeReg, c.Size
	case c.Type == spec.TypeDirectory:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
	case c.Type == spec.TypeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, c.Link
	case c.Type == spec.TypeFIFO:
		h.Typeflag = tar.TypeFifo
	default:
		return nil, fmt.Errorf("%q is a %q, which an archive cannot have", c.Path, c.Type)
	}
	for name, value := range c.Xattrs {
		if strings.Contains(name, "=") {
			return nil, fmt.Errorf("%q has the extended attribute %q, which an archive cannot have: remove it with setfattr -x", c.Path, name)
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+name] = string(value)
	}
	return h, nil
}

func (a *archive) name(p string) string {
	if a.options.Prefix == "" {
		return p
	}
	return a.options.Prefix + "/" + p
}

// file writes a regular file. One that is gone since it was listed cannot be left
// out: there may be links to it.
func (a *archive) file(name string, h *tar.Header) error {
	f, err := a.stack.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return changed(name)
	} else if err != nil {
		return err
	}
	defer f.Close()
	before, err := statFile(f)
	if err != nil {
		return err
	}
	h.Size = before.Size
	if a.holes += max(0, before.Size-before.Blocks*512); a.holes > maxHoles {
		return fmt.Errorf("%q is %d bytes long, and all but %d of them are holes, which an archive would have as zeros: more than 1 GiB of them, with those of the files before it, are refused; make it smaller with truncate, or remove it", name, before.Size, before.Blocks*512)
	}
	if err := a.begin(name, h); err != nil {
		return err
	}
	copied, err := io.CopyN(a.tar, f, h.Size)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("archive %q: %w", name, err)
	}
	after, err := statFile(f)
	if err != nil {
		return err
	}
	// Before Linux 6.13 two changes within a tick have one ctime.
	if copied != h.Size || after.Size != before.Size || after.Ctim != before.Ctim {
		return changed(name)
	}
	return nil
}

func changed(name string) error {
	return fmt.Errorf("%q changed while it was read: pause the sandbox, or wait until it is done", name)
}

// maxHoles is how much of all files may be no data on disk.
const maxHoles = 1 << 30

// statFile describes a file at the moment.
func statFile(f *os.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return st, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return st, nil
}
