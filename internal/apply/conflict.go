package apply

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"io"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// changed tells whether an entry of the tree is not what the sandbox saw.
func (p *Plan) changed(path string, e entry) bool {
	return e.ctime > p.o.Since.UnixNano() && !p.ours(path, e)
}

func (p *Plan) ours(path string, e entry) bool {
	stamp, ok := p.o.Stamps[path]
	return ok && stamp == e.ctime
}

// attributesChanged is changed for a directory's own attributes: what only
// changes in the directory sets ctime and mtime to the same moment.
func (p *Plan) attributesChanged(path string, e entry) bool {
	return p.changed(path, e) && e.ctime != e.MTime
}

// goesUnseen tells whether an entry that is to go is not what the sandbox saw,
// but for what is in it.
func (p *Plan) goesUnseen(path string, e entry) bool {
	if !e.dir() {
		return p.changed(path, e)
	}
	_, ours := p.o.Stamps[path]
	isNew := !ours && e.born > p.o.Since.UnixNano()
	return isNew || p.attributesChanged(path, e)
}

// check finds the conflict of an entry with the one that it would replace.
func (p *Plan) check(c *spec.Change, e entry) error {
	if !p.goesUnseen(c.Path, e) {
		return nil
	}
	same, err := p.same(c, e)
	if err == nil && !same {
		p.conflict(c.Path, "has changed on the host since the sandbox began")
	}
	return err
}

// checkGone finds the conflict of an entry that is to come with the host, which
// has deleted what an earlier apply has put there.
func (p *Plan) checkGone(c *spec.Change) {
	if _, applied := p.o.Stamps[c.Path]; !applied {
		return
	}
	if _, err := p.tree.stat(c.Path); missing(err) || noDirectory(err) {
		p.conflict(c.Path, "was deleted on the host since it was applied")
	}
}

// same tells whether an entry of the tree is what would be put there anyway, a
// directory but for what is in it.
func (p *Plan) same(c *spec.Change, e entry) (bool, error) {
	if e.fileType() != c.Type || c.Type != spec.TypeSymlink && e.Mode&0o7777 != p.carriedMode(c) {
		return false, nil
	}
	switch c.Type {
	case spec.TypeSymlink:
		link, err := p.tree.readlink(c.Path)
		return link == c.Link, err
	case spec.TypeFile:
		return p.sameContent(c, e)
	case spec.TypeFIFO, spec.TypeDirectory:
		return true, nil
	}
	return false, nil
}

func (p *Plan) sameContent(c *spec.Change, e entry) (bool, error) {
	if e.Size != c.Size {
		return false, nil
	}
	ours, err := p.stack.Open(c.Path)
	if err != nil {
		return false, err
	}
	defer ours.Close()
	theirs, err := p.tree.openFile(c.Path)
	if errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer theirs.Close()
	return equalReaders(ours, theirs)
}

func equalReaders(a, b io.Reader) (bool, error) {
	const size = 64 << 10
	inA, inB := make([]byte, size), make([]byte, size)
	for {
		n, errA := io.ReadFull(a, inA)
		m, errB := io.ReadFull(b, inB)
		if !bytes.Equal(inA[:n], inB[:m]) {
			return false, nil
		}
		for _, err := range []error{errA, errB} {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return false, err
			}
		}
		if n < size || m < size {
			return true, nil
		}
	}
}

func (t *tree) readlink(path string) (string, error) {
	dir, name, err := t.parent(path)
	if err != nil {
		return "", err
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, b)
	if err != nil {
		return "", &pathError{path, err}
	}
	return string(b[:n]), nil
}

// victim looks at what would go with an entry, and returns by what a directory
// is known again.
func (p *Plan) victim(path string, e entry) (string, error) {
	if e.mount {
		return "", &pathError{path, unix.EBUSY}
	}
	if !e.dir() {
		return "", nil
	}
	digest := sha256.New()
	err := p.tree.walk(path, func(at string, e entry) error {
		if e.mount {
			return &pathError{at, unix.EBUSY}
		}
		digestEntry(digest, at[len(path):], e)
		if !p.goesUnseen(at, e) {
			return nil
		}
		again, err := p.comesAgain(at, e)
		if err == nil && !again {
			p.conflict(at, "is to go with its directory, and has changed on the host since the sandbox began")
		}
		return err
	})
	return hex.EncodeToString(digest.Sum(nil)), err
}

// comesAgain tells whether an entry, that is to go with its directory, is what is in
// the directory that comes.
func (p *Plan) comesAgain(path string, e entry) (bool, error) {
	if p.byPath == nil {
		p.byPath = make(map[string]*spec.Change, len(p.changes))
		for i := range p.changes {
			p.byPath[p.changes[i].Path] = &p.changes[i]
		}
	}
	c := p.byPath[path]
	if c == nil || c.Kind == spec.Deleted {
		return false, nil
	}
	return p.same(c, e)
}

// digestOf is what victim returned, of a directory that may have been moved.
func (t *tree) digestOf(path string) (string, error) {
	digest := sha256.New()
	err := t.walk(path, func(at string, e entry) error {
		digestEntry(digest, at[len(path):], e)
		return nil
	})
	return hex.EncodeToString(digest.Sum(nil)), err
}

func digestEntry(h hash.Hash, path string, e entry) {
	b := append([]byte(path), 0)
	b = binary.LittleEndian.AppendUint64(b, e.Ino)
	b = binary.LittleEndian.AppendUint32(b, e.Mode)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Size))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.MTime))
	if e.dir() || e.links == 1 { // else the ctime changes as other names are moved
		b = binary.LittleEndian.AppendUint64(b, uint64(e.ctime))
	}
	h.Write(b)
}
