package source

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/inflate"
	fds "github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
)

// Directories of a cache. A file is named by the hexadecimal digits of its digest.
const (
	blobsDir   = "blobs"   // whole objects
	partialDir = "partial" // downloads that may go on
	locksDir   = "locks"   // one lock per digest

	temporaryPrefix = "tmp-"
)

// Objects that were unused for this time are removed. The store of images soon has its own copy of a whole object. A part
// stays for the user's next try.
const (
	wholeAge = time.Hour
	partAge  = 24 * time.Hour
)

func maxAge(dir string) time.Duration {
	if dir == blobsDir {
		return wholeAge
	}
	return partAge
}

// cache is the directory of downloads of one user. Several processes use it at the same time. A file is good only
// when its digest was checked: readers check again, and remove a damaged file.
type cache struct {
	root *os.Root
	// sparing says that temporary files leave a tenth of the free space.
	sparing bool
}

func openCache(dir string) (*cache, error) {
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("open cache: %w", err)
		}
		dir = filepath.Join(user, "sandbox-runtime", "images")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	c := &cache{root: root}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("open cache %s: %w", dir, err), root.Close())
	}
	return c, nil
}

// prepare makes the directories. It refuses a cache that another user can change.
func (c *cache) prepare() error {
	info, err := c.root.Stat(".")
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return errors.New("another user can change the directory; use a directory of your own with mode 0700")
	}
	for _, name := range []string{blobsDir, partialDir, locksDir} {
		if err := c.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if info, err := c.root.Lstat(name); err != nil || !info.IsDir() {
			return errors.Join(fmt.Errorf("%s is not a directory; remove it", name), err)
		}
	}
	return nil
}

// Close is safe to call twice.
func (c *cache) Close() error { return c.root.Close() }

func digits(digest string) string { return strings.TrimPrefix(digest, digestPrefix) }

// lock waits for the lock of a digest. The kernel releases the lock of a killed process.
func (c *cache) lock(ctx context.Context, digest string) (*os.File, error) {
	name := filepath.Join(locksDir, digits(digest))
	for {
		if err := c.clear(name); err != nil {
			return nil, err
		}
		f, err := c.root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := fds.Lock(ctx, f, fds.Exclusive); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		have, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		// A lock file is removed with its blob.
		if there, err := c.root.Lstat(name); err == nil && os.SameFile(have, there) {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// open returns a whole object, or an error that is fs.ErrNotExist.
func (c *cache) open(digest string) (*os.File, error) {
	name := filepath.Join(blobsDir, digits(digest))
	if err := c.clear(name); err != nil {
		return nil, err
	}
	f, err := c.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if err := c.root.Chtimes(name, now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// clear removes an entry that is not a regular file of this user. A named pipe would block the open, and a file that cannot
// be opened would make all pulls of its object fail.
func (c *cache) clear(name string) error {
	info, err := c.root.Lstat(name)
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && info.Mode().IsRegular() && info.Mode().Perm()&0o600 == 0o600 && int(stat.Uid) == os.Geteuid() {
		return nil
	}
	return c.root.RemoveAll(name)
}

// remove removes an object that is damaged.
func (c *cache) remove(digest string) error {
	return c.removeFile(filepath.Join(blobsDir, digits(digest)))
}

// removeFile removes a file. Another process may have removed the file meanwhile.
func (c *cache) removeFile(name string) error { return erase.IgnoreMissing(c.root.Remove(name)) }

// read returns a small object whose digest was checked, or an error that is fs.ErrNotExist. A damaged one is removed.
func (c *cache) read(digest string, limit int64) ([]byte, error) {
	f, err := c.open(digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if digestOf(text) != digest {
		return nil, errors.Join(fs.ErrNotExist, c.remove(digest))
	}
	return text, nil
}

// write stores a small object whose digest was checked.
func (c *cache) write(digest string, text []byte) error {
	f, name, err := c.create()
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = c.root.Rename(name, filepath.Join(blobsDir, digits(digest)))
	}
	if err != nil {
		return errors.Join(err, c.root.Remove(name))
	}
	return nil
}

// create makes a file with a random name. A killed process leaves the file to prune.
func (c *cache) create() (f *os.File, name string, err error) {
	name = filepath.Join(partialDir, temporaryPrefix+rand.Text())
	f, err = c.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	return f, name, err
}

// temporary returns a file without a name. The space of the file is free when the file is closed.
func (c *cache) temporary() (*os.File, error) {
	f, name, err := c.create()
	if err != nil {
		return nil, err
	}
	if err := c.root.Remove(name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// writer writes to a temporary file.
func (c *cache) writer(f *os.File) (io.Writer, error) {
	if !c.sparing {
		return f, nil
	}
	return inflate.Sparing(f)
}

// prune removes objects that were unused for a long time. It skips those in a download.
func (c *cache) prune(now time.Time) error {
	var failed []error
	for _, dir := range []string{blobsDir, partialDir, locksDir} {
		entries, err := fs.ReadDir(c.root.FS(), dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || now.Sub(info.ModTime()) < maxAge(dir) {
				continue // removed meanwhile, or in use
			}
			if err := c.pruneDigest(e.Name(), now); err != nil {
				failed = append(failed, err)
			}
		}
	}
	return errors.Join(failed...)
}

// pruneDigest removes the old files of a digest under its lock.
func (c *cache) pruneDigest(name string, now time.Time) error {
	if strings.HasPrefix(name, temporaryPrefix) {
		return c.removeFile(filepath.Join(partialDir, name))
	}
	if !validDigest(digestPrefix + name) {
		return nil // not a file of this package
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	lock, err := c.lock(ctx, name)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // in a download
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	young := false
	for _, dir := range []string{blobsDir, partialDir, locksDir} {
		path := filepath.Join(dir, name)
		info, err := c.root.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if dir != locksDir && now.Sub(info.ModTime()) < maxAge(dir) {
			young = true
			continue
		}
		if young && dir == locksDir {
			continue
		}
		if err := c.removeFile(path); err != nil {
			return err
		}
	}
	return nil
}

// checkedReader reads an object, and fails at the end if size or digest are wrong.
type checkedReader struct {
	r      io.Reader
	digest string
	left   int64
	sum    hash.Hash
	// bad is called once if the object is wrong.
	bad   func() error
	close func() error
	err   error
}

func newCheckedReader(r io.Reader, digest string, size int64, bad, closing func() error) *checkedReader {
	return &checkedReader{r: r, digest: digest, left: size, sum: sha256.New(), bad: bad, close: closing}
}

func (c *checkedReader) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.r.Read(p)
	c.left -= int64(n)
	c.sum.Write(p[:n])
	switch {
	case c.left < 0 || errors.Is(err, io.EOF) && c.left != 0:
		c.err = c.wrong("size")
	case errors.Is(err, io.EOF) && digestPrefix+hex.EncodeToString(c.sum.Sum(nil)) != c.digest:
		c.err = c.wrong("digest")
	default:
		c.err = err
		return n, err
	}
	return 0, c.err
}

func (c *checkedReader) wrong(property string) error {
	err := fmt.Errorf("%s: the content has another %s", c.digest, property)
	if c.bad != nil {
		err = errors.Join(err, c.bad())
	}
	return err
}

func (c *checkedReader) Close() error {
	if c.close == nil {
		return nil
	}
	err := c.close()
	c.close = nil
	return err
}
