package apply

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// small is the largest size of a file that is copied through memory: one more system call,
// to find out whether the file systems do better, is not worth it.
const small = 64 << 10

// A copier copies the content of files, one after the other.
type copier struct {
	buf []byte
	// byHand says that the kernel does not copy between these file systems.
	byHand bool
	// source identifies the content of the last file that was copied. It is 0 if a later
	// change of the file may have the same change time.
	source int64
}

var errChanging = errors.New("it is being written to while it is read: pause or stop the sandbox first")

// file copies a regular file into an empty one, holes as holes.
func (c *copier) file(to, from int) error {
	var before, after unix.Stat_t
	if err := unix.Fstat(from, &before); err != nil {
		return err
	}
	if before.Mode&unix.S_IFMT != unix.S_IFREG {
		return errNotRegular
	}
	c.source = 0
	if before.Ctim.Nano() < coarseTime() {
		c.source = layer.SourceOf(&before)
	}
	if before.Size == 0 {
		return nil
	}
	var err error
	switch {
	case before.Size <= small: // all of it is read here
		err = c.through(to, from, 0, before.Size)
	case before.Blocks*512 >= before.Size:
		err = c.part(to, from, 0, before.Size)
	default:
		err = c.extents(to, from, before.Size)
	}
	if err == nil && before.Size > small {
		err = c.lastByte(from, before.Size)
	}
	if err != nil {
		return err
	}
	if err := unix.Fstat(from, &after); err != nil {
		return err
	}
	if after.Ctim != before.Ctim || after.Size != before.Size {
		return errChanging
	}
	return nil
}

// lastByte reads the last byte of a copied file. A file that became shorter has no such
// byte. A file system that is being removed refuses the read, but shows data as holes: a
// copy of holes alone proves nothing.
func (c *copier) lastByte(from int, size int64) error {
	var last [1]byte
	n, err := descriptor.Retry(func() (int, error) { return unix.Pread(from, last[:], size-1) })
	if err == nil && n == 0 {
		err = errChanging
	}
	return err
}

// extents copies the parts of a file that are not holes.
func (c *copier) extents(to, from int, size int64) error {
	for at := int64(0); at < size; {
		data, err := unix.Seek(from, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // only a hole is left
		}
		if err != nil {
			return err
		}
		hole, err := unix.Seek(from, data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		hole = min(hole, size)
		if data >= hole {
			break
		}
		if err := c.part(to, from, data, hole); err != nil {
			return err
		}
		at = hole
	}
	return unix.Ftruncate(to, size)
}

func (c *copier) part(to, from int, at, end int64) error {
	if end-at > small && !c.byHand {
		n, err := ranges(to, from, at, end)
		at += n
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
			c.byHand = true
		default:
			return err
		}
	}
	return c.through(to, from, at, end)
}

// ranges has the kernel copy, which shares blocks where the file system can.
func ranges(to, from int, at, end int64) (done int64, err error) {
	for at+done < end {
		in, out := at+done, at+done
		n, err := descriptor.Retry(func() (int, error) {
			return unix.CopyFileRange(from, &in, to, &out, int(min(end-at-done, 1<<30)), 0)
		})
		if err != nil {
			return done, err
		}
		if n == 0 {
			return done, errChanging
		}
		done += int64(n)
	}
	return done, nil
}

func (c *copier) through(to, from int, at, end int64) error {
	if c.buf == nil {
		c.buf = make([]byte, 256<<10)
	}
	for at < end {
		n, err := descriptor.Retry(func() (int, error) { return unix.Pread(from, c.buf[:min(end-at, int64(len(c.buf)))], at) })
		if err != nil {
			return err
		}
		if n == 0 {
			return errChanging
		}
		for b := c.buf[:n]; len(b) > 0; {
			w, err := descriptor.Retry(func() (int, error) { return unix.Pwrite(to, b, at) })
			if err != nil {
				return err
			}
			if w == 0 {
				return io.ErrShortWrite
			}
			b, at = b[w:], at+int64(w)
		}
	}
	return nil
}
