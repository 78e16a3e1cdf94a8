package apply

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// checkGone finds the conflict of a new entry: an earlier apply has put one there, and
// the host has deleted that one.
func (p *Plan) checkGone(c *spec.Change) {
	if _, applied := p.o.Stamps[c.Path]; !applied {
		return
	}
	if _, err := p.tree.stat(c.Path); missing(err) || noDirectory(err) {
		p.conflict(c.Path, "was deleted on the host since it was applied")
	}
}

func (t *tree) readlink(path string) (string, error) {
	dir, name, err := t.parent(path)
	if err != nil {
		return "", err
	}
	link, err := descriptor.ReadLink(dir, name)
	if err != nil {
		return "", &pathError{path, err}
	}
	return link, nil
}

// victim returns the digest of a directory that is removed or replaced, and refuses a
// directory with mounts.
func (t *tree) victim(path string, e entry) (string, error) {
	if e.mount {
		return "", &pathError{path, unix.EBUSY}
	}
	if !e.dir() {
		return "", nil
	}
	return t.digest(path, func(at string, e entry) error {
		if e.mount {
			return &pathError{at, unix.EBUSY}
		}
		return nil
	})
}

// comesAgain tells whether a removed entry equals the new entry of its path.
func (p *Plan) comesAgain(path string, e entry) (bool, error) {
	i, found := slices.BinarySearchFunc(p.changes, path, func(c spec.Change, path string) int { return comparePaths(c.Path, path) })
	if !found || p.changes[i].Kind == spec.Deleted {
		return false, nil
	}
	return p.comparison.isEqual(&p.changes[i], e)
}

// comparePaths orders paths as a walk meets them: a directory, its entries, then the
// next name.
func comparePaths(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			continue
		}
		switch {
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		}
		return cmp.Compare(a[i], b[i])
	}
	return cmp.Compare(len(a), len(b))
}

// digest identifies all entries below a directory. A move of the directory does not
// change the digest. It calls look with each entry.
func (t *tree) digest(path string, look func(path string, e entry) error) (string, error) {
	digest := sha256.New()
	err := t.walk(path, func(at string, e entry) error {
		digestEntry(digest, at[len(path):], e)
		return look(at, e)
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
