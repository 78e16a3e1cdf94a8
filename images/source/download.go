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
	"net"
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

// A part has the bytes of an object that a file has so far.
type part struct {
	file *os.File
	sum  hash.Hash
	have int64
	// resumed says that bytes come from an earlier answer, or that the server was last asked for the rest of the object.
	resumed bool
}

// run completes a file, and leaves its offset at the beginning. A server may refuse to go on behind a part, and a part may
// be wrong. So a resumed download that fails begins anew, once. After another failure the file keeps its bytes.
func (d download) run(ctx context.Context, f *os.File) error {
	p, err := d.resume(f)
	if err != nil {
		return err
	}
	err = d.complete(ctx, p, false)
	if err != nil && p.resumed && ctx.Err() == nil && blamesPart(err) {
		err = d.complete(ctx, p, true)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	return err
}

// complete asks for the rest of the object until the object is whole. If anew is set, it never asks for a rest: the first
// answer replaces the part.
func (d download) complete(ctx context.Context, p *part, anew bool) error {
	farthest := p.have
	for tries := 1; ; tries++ {
		err := d.pass(ctx, p, anew)
		if err == nil {
			return d.check(p)
		}
		if !errors.As(err, new(*temporaryError)) {
			return err
		}
		if p.have-farthest >= enoughProgress {
			tries, farthest = 1, p.have
		}
		if tries >= maxTries {
			return fmt.Errorf("%w (%d tries)", err, tries)
		}
		if err := d.patience.pause(ctx, tries, 0); err != nil {
			return err
		}
	}
}

// enoughProgress is the number of bytes after which a cut costs no try.
const enoughProgress = 1 << 20

// check compares the digest of a whole object, and drops an object with another one.
func (d download) check(p *part) error {
	if digestPrefix+hex.EncodeToString(p.sum.Sum(nil)) == d.digest {
		return nil
	}
	return errors.Join(fmt.Errorf("%s: the server sent another content: its digest is wrong", d.digest), p.drop())
}

// resume hashes the bytes that an earlier download has left. It drops bytes that cannot be read, and those that are more
// than the object has.
func (d download) resume(f *os.File) (*part, error) {
	p := &part{file: f, sum: sha256.New()}
	have, err := io.Copy(p.sum, io.LimitReader(f, d.size+1))
	if err != nil || have > d.size {
		return p, p.drop()
	}
	p.have, p.resumed = have, have > 0
	return p, nil
}

// drop removes all bytes.
func (p *part) drop() error {
	p.sum.Reset()
	p.have = 0
	if err := p.file.Truncate(0); err != nil {
		return err
	}
	_, err := p.file.Seek(0, io.SeekStart)
	return err
}

// A rejectedError is an answer of a server that is not the rest of an object.
type rejectedError struct{ error }

func (e *rejectedError) Unwrap() error { return e.error }

// blamesPart says whether a resumed download may have failed because of its part. Errors of this host's files, and servers
// that are not reached or do not answer in time, tell nothing about the part.
func blamesPart(err error) bool {
	if errors.As(err, new(*rejectedError)) { // by one of several servers
		return true
	}
	var network *net.OpError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, new(*fs.PathError)), errors.As(err, &network) && network.Op == "dial":
		return false
	case errors.As(err, &timeout) && timeout.Timeout():
		return false
	}
	return true
}

// pass asks once for the rest of the object, or for all of the object.
func (d download) pass(ctx context.Context, p *part, anew bool) error {
	if p.have == d.size && !anew {
		d.report(p.have)
		return nil
	}
	offset := p.have
	if anew {
		offset = 0
	}
	p.resumed = p.resumed || offset > 0
	body, start, err := d.fetch(ctx, offset)
	if err != nil {
		return err
	}
	defer body.Close()
	p.resumed = start > 0
	if start != p.have {
		if err := p.drop(); err != nil {
			return err
		}
	}
	return d.copy(ctx, p, body)
}

// copy adds an answer to the part.
func (d download) copy(ctx context.Context, p *part, body io.Reader) error {
	buffer := make([]byte, 128<<10)
	for {
		d.report(p.have)
		n, err := body.Read(buffer[:min(int64(len(buffer)), d.size-p.have+1)])
		if int64(n) > d.size-p.have {
			return errors.Join(fmt.Errorf("%s: the server sent more than %d bytes", d.digest, d.size), p.drop())
		}
		if _, err := p.file.Write(buffer[:n]); err != nil {
			return err
		}
		p.sum.Write(buffer[:n])
		p.have += int64(n)
		switch {
		case errors.Is(err, io.EOF) && p.have == d.size:
			d.report(p.have)
			return nil
		case errors.Is(err, io.EOF):
			return &temporaryError{fmt.Errorf("%s: the server sent %d of %d bytes", d.digest, p.have, d.size)}
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return &temporaryError{err}
		}
	}
}
