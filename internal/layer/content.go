package layer

import (
	"bytes"
	"io"
)

// maxCompared bounds the files whose content is compared: a longer one that was
// copied from the base counts as changed.
const maxCompared = 64 << 20

// sameContent reports whether a regular file of the layers has the base's content, if both
// have this size. Equal stamps do not tell: a sandbox can set them, and archives give many
// files one stamp. A file that cannot be read counts as changed.
func (s *Stack) sameContent(path string, size int64) bool {
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
	most := min(size+1, 64<<10) // one more byte meets the end of the file
	a, b := make([]byte, most), make([]byte, most)
	for range maxCompared/len(a) + 1 {
		n, atEnd := io.ReadFull(now, a)
		m, baseAtEnd := io.ReadFull(base, b)
		if n != m || !bytes.Equal(a[:n], b[:m]) {
			return false
		}
		if atEnd != nil || baseAtEnd != nil {
			return isEnd(atEnd) && isEnd(baseAtEnd)
		}
	}
	return false
}

func isEnd(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF }
