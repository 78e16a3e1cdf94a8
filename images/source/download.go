package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// fetcher asks a server for an object, from an offset on. The reader begins at start: the offset, or 0 if the server
// cannot resume.
type fetcher func(ctx context.Context, offset int64) (body io.ReadCloser, start int64, err error)

// download is one object on its way into the cache.
type download struct {
	digest string
	size   int64
	fetch  fetcher
	// report is called with the number of bytes that are there.
	report   func(done int64)
	patience patience
}

// get returns an object from the cache, and downloads the object into the cache before if it is not there. One process
// downloads, and the others wait for it.
func (c *cache) get(ctx context.Context, d download) (*os.File, error) {
	if f, err := c.openWhole(d); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	lock, err := c.lock(ctx, d.digest)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	// Another process may have finished meanwhile.
	if f, err := c.openWhole(d); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	name := filepath.Join(partialDir, digits(d.digest))
	if err := c.clear(name); err != nil {
		return nil, err
	}
	f, err := c.root.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = d.run(ctx, f)
	if err == nil {
		err = c.root.Rename(name, filepath.Join(blobsDir, digits(d.digest)))
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		// The space is worth more than the part.
		err = errors.Join(fmt.Errorf("%w; make room, or set XDG_CACHE_HOME to a directory with more room", err), c.root.Remove(name))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// openWhole returns an object of the right size. An object of another size is removed.
func (c *cache) openWhole(d download) (*os.File, error) {
	f, err := c.open(d.digest)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != d.size {
		err = errors.Join(fs.ErrNotExist, c.remove(d.digest))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d.report(d.size)
	return f, nil
}

// run completes a file, and leaves its offset at the beginning. After a failure the file keeps the bytes that are worth
// a resumed download.
func (d download) run(ctx context.Context, f *os.File) error {
	sum := sha256.New()
	have, err := d.resume(f, sum)
	if err != nil {
		return err
	}
	resumed := have > 0
	for tries := 1; ; tries++ {
		before := have
		have, err = d.pass(ctx, f, sum, have)
		if err == nil && digestPrefix+hex.EncodeToString(sum.Sum(nil)) == d.digest {
			_, err = f.Seek(0, io.SeekStart)
			return err
		}
		if err == nil {
			// The old part may be damaged, such as after a loss of power.
			if have, err = 0, restart(f, sum); err != nil {
				return err
			}
			if !resumed {
				return fmt.Errorf("%s: the server sent another content: its digest is wrong", d.digest)
			}
			resumed = false
			continue
		}
		if temporary := (*temporaryError)(nil); !errors.As(err, &temporary) {
			return err
		}
		if have-before >= enoughProgress {
			tries = 1
		}
		if tries >= d.patience.tries() {
			return fmt.Errorf("%w (%d tries)", err, tries)
		}
		if err := d.patience.pause(ctx, tries, 0); err != nil {
			return err
		}
	}
}

// enoughProgress is the number of bytes after which a cut costs no try.
const enoughProgress = 1 << 20

// resume hashes the bytes that an earlier download has left.
func (d download) resume(f *os.File, sum hash.Hash) (int64, error) {
	have, err := io.Copy(sum, io.LimitReader(f, d.size+1))
	if err != nil {
		return 0, err
	}
	if have > d.size {
		return 0, restart(f, sum)
	}
	return have, nil
}

func restart(f *os.File, sum hash.Hash) error {
	sum.Reset()
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.Seek(0, io.SeekStart)
	return err
}

// pass asks once for the rest of the object. It returns the number of bytes that are there.
func (d download) pass(ctx context.Context, f *os.File, sum hash.Hash, have int64) (int64, error) {
	if have == d.size {
		d.report(have)
		return have, nil
	}
	body, start, err := d.fetch(ctx, have)
	if err != nil {
		return have, err
	}
	defer body.Close()
	if start != have {
		if have, err = 0, restart(f, sum); err != nil {
			return 0, err
		}
	}
	buffer := make([]byte, 128<<10)
	for {
		d.report(have)
		n, err := body.Read(buffer[:min(int64(len(buffer)), d.size-have+1)])
		if int64(n) > d.size-have {
			return 0, errors.Join(fmt.Errorf("%s: the server sent more than %d bytes", d.digest, d.size), restart(f, sum))
		}
		if _, err := f.Write(buffer[:n]); err != nil {
			return have, err
		}
		sum.Write(buffer[:n])
		have += int64(n)
		switch {
		case errors.Is(err, io.EOF) && have == d.size:
			d.report(have)
			return have, nil
		case errors.Is(err, io.EOF):
			return have, &temporaryError{fmt.Errorf("%s: the server sent %d of %d bytes", d.digest, have, d.size)}
		case ctx.Err() != nil:
			return have, ctx.Err()
		case err != nil:
			return have, &temporaryError{err}
		}
	}
}
