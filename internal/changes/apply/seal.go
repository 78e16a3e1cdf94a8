package apply

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// sealName is the attribute with the digest and size of a record that root has written.
// Root's ownership of a record proves nothing: the writes of a sandbox to a directory of
// root belong to root, too. But only a privileged process of the host sets attributes of
// this kind.
const sealName = "trusted.sandbox-runtime.apply"

var errForged = errors.New("was not written by an apply: if none is of use any more, remove it")

// seal marks a record as written by this user, where that can be told.
func seal(f *os.File, value []byte) error {
	err := unix.Fsetxattr(int(f.Fd()), sealName, value, 0)
	if unsealed(err) {
		return nil
	}
	return err
}

// unsealed says that this user, or the file system, has no seals. Files of another user
// are not read anyway.
func unsealed(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP)
}

// sealed reads a record, and refuses one that others have written, or changed.
func (j *journal) sealed(f *os.File) (io.Reader, error) {
	if err := seal(j.dir, nil); err != nil {
		return nil, err
	}
	if _, err := unix.Fgetxattr(int(j.dir.Fd()), sealName, nil); err != nil {
		return f, nil //nolint:nilerr // there are none, here or for this user
	}
	want := make([]byte, maxSeal)
	n, err := unix.Fgetxattr(int(f.Fd()), sealName, want)
	if err != nil {
		return nil, errForged
	}
	e, err := statFD(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	// Others may still write to it, and make it larger than memory.
	if !bytes.HasSuffix(want[:n], sizeOf(e.Size)) {
		return nil, errForged
	}
	content := make([]byte, e.Size)
	if _, err := io.ReadFull(f, content); err != nil {
		return nil, err
	}
	if digest := sha256.Sum256(content); !bytes.Equal(want[:n], append(digest[:], sizeOf(e.Size)...)) {
		return nil, errForged
	}
	return bytes.NewReader(content), nil
}

const maxSeal = sha256.Size + 8

func sizeOf(size int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(size)) }
