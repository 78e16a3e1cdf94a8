package index

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// builder reads layers into a tree, and writes the tree.
type builder struct {
	*tree
	ctx     context.Context
	out     *os.File
	devices []int64 // blocks of the archives
	copied  int64   // the end of the copied files in the index
	sparse  int64   // bytes of copied files
	entries int
	buffer  []byte
}

// archive is one layer while it is read.
type archive struct {
	*builder
	*tar.Reader
	src    *io.SectionReader
	device uint16
	linked map[string]*inode // targets of hard links that are in no tree
}

func (b *builder) addLayer(n int, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if b.devices[n] = info.Size() / blockSize; b.devices[n] > maxBlocks {
		return fmt.Errorf("the archive has %d bytes: at most %d can be referred to", info.Size(), int64(maxBlocks)*blockSize)
	}
	b.layer = int32(n + 1)
	src := io.NewSectionReader(f, 0, info.Size())
	a := &archive{builder: b, Reader: tar.NewReader(src), src: src, device: uint16(n + 1)}
	for {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return fmt.Errorf("read the archive after %d entries: %w", b.entries, err)
		}
		if b.entries++; b.entries > b.limits.Entries {
			return &LimitError{Limit: "entries", Max: int64(b.limits.Entries)}
		}
		if err := a.add(h); err != nil {
			return fmt.Errorf("entry %s: %w", show(h.Name), err)
		}
	}
}

// show is a name for an error of one line.
func show(name string) string {
	if len(name) > 100 {
		return fmt.Sprintf("%q...", name[:100])
	}
	return fmt.Sprintf("%q", name)
}

// add puts an entry of the archive into the tree.
func (a *archive) add(h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil // comments, as those of git archive
	}
	if strings.ContainsRune(h.Name, 0) || strings.ContainsRune(h.Linkname, 0) {
		return errors.New("a name with a zero byte")
	}
	name := path.Clean("/" + h.Name)
	if len(name) > maxPath {
		return errPathTooLong
	}
	if isAUFS(name) {
		return a.addAUFS(name, h)
	}
	dir, base := path.Split(name)
	if strings.Contains(dir, "/"+whiteout) {
		return errors.New("a whiteout is no directory")
	}
	if strings.HasPrefix(base, whiteout) {
		return a.whiteOut(dir, base)
	}
	if name == "/" {
		return a.addRoot(h)
	}
	parent, err := a.walk(dir, true)
	if err != nil {
		return err
	}
	i, err := a.inode(h)
	if err != nil {
		return err
	}
	return a.put(parent, base, i)
}

// addRoot takes the metadata of the root.
func (a *archive) addRoot(h *tar.Header) error {
	i, err := a.inode(h)
	if err != nil {
		return err
	}
	if i.dir == nil {
		return errors.New("the root is not a directory")
	}
	content := a.root.dir
	*a.root = *i
	a.root.dir = content
	return nil
}

// whiteOut removes entries of lower layers.
func (a *archive) whiteOut(dir, base string) error {
	hidden := strings.TrimPrefix(base, whiteout)
	if base != opaque && (hidden == "" || hidden == "." || hidden == "..") {
		return errors.New("a whiteout of no name")
	}
	at, err := a.walk(dir, false)
	switch {
	case errors.Is(err, errMissing) || errors.Is(err, errNotDirectory):
		return nil // nothing to hide
	case err != nil:
		return err
	case base == opaque:
		a.clearLower(at.dir)
	default:
		a.removeLower(at.dir, hidden)
	}
	return nil
}

// inode makes an inode of an entry. A hard link has the inode of its target.
func (a *archive) inode(h *tar.Header) (*inode, error) {
	if h.Typeflag == tar.TypeLink {
		return a.target(h.Linkname)
	}
	i := &inode{mode: uint16(h.Mode & 0o7777)}
	if err := a.setMetadata(i, h); err != nil {
		return nil, err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		i.mode |= unix.S_IFREG
		return i, a.setContent(i, h)
	case tar.TypeDir:
		i.mode |= unix.S_IFDIR
		i.dir = &directory{entries: map[string]entry{}}
	case tar.TypeSymlink:
		i.mode = unix.S_IFLNK | 0o777
		return i, a.setTarget(i, h.Linkname)
	case tar.TypeFifo:
		i.mode |= unix.S_IFIFO
	case tar.TypeChar:
		i.mode |= unix.S_IFCHR
		return i, setDevice(i, h)
	case tar.TypeBlock:
		i.mode |= unix.S_IFBLK
		return i, setDevice(i, h)
	default:
		return nil, fmt.Errorf("type %q is not supported: files, directories, links, devices and FIFOs are", h.Typeflag)
	}
	return i, nil
}

// target is the inode that a hard link names. As for link(2), the last name is not followed.
func (a *archive) target(target string) (*inode, error) {
	name := path.Clean("/" + target)
	if i, ok := a.linked[name]; ok {
		return i, nil
	}
	dir, base := path.Split(name)
	at, err := a.walk(dir, false)
	if err != nil {
		return nil, fmt.Errorf("hard link to %s: %w", show(target), err)
	}
	e, ok := at.dir.entries[base]
	switch {
	case base == "" || ok && e.dir != nil:
		return nil, fmt.Errorf("hard link to %s: it is a directory", show(target))
	case !ok:
		return nil, fmt.Errorf("hard link to %s: %w", show(target), errMissing)
	}
	return e.inode, nil
}

// setContent says where the content lies.
func (a *archive) setContent(i *inode, h *tar.Header) error {
	i.size = h.Size
	switch {
	case h.Size > maxChunk:
		return fmt.Errorf("the file has %d bytes: at most %d are supported", h.Size, int64(maxChunk))
	case isSparse(h):
		return a.copySparse(i)
	case h.Size == 0:
		return nil
	}
	at, err := a.src.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if at%blockSize != 0 {
		return io.ErrUnexpectedEOF
	}
	if (at+i.size+blockSize-1)/blockSize > a.devices[a.device-1] {
		// The end of the archive can lack its padding (umoci insert 0.4.7). A truncated file ends the copy.
		return a.copySparse(i)
	}
	i.device, i.offset = a.device, at
	return nil
}

// isSparse says that the archive has a map of the file's holes, in any of the formats of
// GNU tar that archive/tar reads.
func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// copySparse copies a file into the index. Blocks of zeros become holes there.
func (a *archive) copySparse(i *inode) error {
	if i.size > a.limits.Copied-a.sparse {
		return &LimitError{Limit: CopiedLimit, Max: a.limits.Copied}
	}
	a.sparse += i.size
	i.offset = a.copied
	if a.buffer == nil {
		a.buffer = make([]byte, 64<<10)
	}
	for left := i.size; left > 0; {
		if err := a.ctx.Err(); err != nil {
			return err
		}
		part := a.buffer[:min(left, int64(len(a.buffer)))]
		if _, err := io.ReadFull(a.Reader, part); err != nil {
			return fmt.Errorf("read a sparse file: %w", err)
		}
		if err := a.writeUnlessZero(part); err != nil {
			return err
		}
		left -= int64(len(part))
	}
	a.copied = roundUp(a.copied, blockSize)
	return nil
}

func (a *archive) writeUnlessZero(part []byte) error {
	if len(bytes.TrimLeft(part, "\x00")) > 0 {
		if _, err := a.out.WriteAt(part, a.copied); err != nil {
			return fmt.Errorf("write the index: %w", err)
		}
	}
	a.copied += int64(len(part))
	return nil
}
