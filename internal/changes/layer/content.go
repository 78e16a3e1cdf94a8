package layer

import (
	"bytes"
	"errors"
	"io"
)

// maxCompared bounds the files whose content is compared: a longer one that was
// copied from the base counts as changed.
const maxCompared = 64 << 20

// sameContent reports whether a regular file of the layers has the base's content, if both
// have this size. Equal stamps do not tell: a sandbox can set them, and archives give many
// files one stamp. A file that cannot be read counts as changed.
func (s *Stack) sameContent(path string, size int64) bool {
	if size > maxCompared {
		return false
	}
	now, err := s.Open(path)
	if err != nil {
		return false
	}
	defer now.Close()
	base, err := s.OpenBelow(path)
	if err != nil {
		return false
	}
	defer base.Close()
	// Either file may grow meanwhile.
	same, err := EqualContent(io.LimitReader(now, size+1), base, size)
	return same && err == nil
}

// EqualContent compares two contents of about this length.
func EqualContent(a, b io.Reader, length int64) (bool, error) {
	size := int(min(length+1, 64<<10)) // one more byte meets the end
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
