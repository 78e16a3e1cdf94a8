package files

import (
	"bytes"
	"os"
	"slices"
)

// zeros is a block without content: a page, the smallest hole of most file systems.
var zeros [4 << 10]byte

// Sparse writes to an empty file, and leaves holes in place of zeros. A sparse file may have many
// tebibytes that need no disk.
type Sparse struct {
	File *os.File
	// Size is the offset of the next byte. At the end the caller must truncate the file to Size.
	Size int64
}

// Write implements [io.Writer].
func (s *Sparse) Write(data []byte) (int, error) {
	begin := 0 // of the blocks before the next hole
	for at := 0; at < len(data); {
		end := min(at+len(zeros), len(data))
		if isZero(data[at:end]) {
			if err := s.writeContent(data[begin:at]); err != nil {
				return 0, err
			}
			s.Size += int64(end - at)
			begin = end
		}
		at = end
	}
	if err := s.writeContent(data[begin:]); err != nil {
		return 0, err
	}
	return len(data), nil
}

func (s *Sparse) writeContent(content []byte) error {
	if len(content) == 0 {
		return nil
	}
	_, err := s.File.WriteAt(content, s.Size)
	s.Size += int64(len(content))
	return err
}

// isZero says that the data have no content.
func isZero(data []byte) bool {
	for block := range slices.Chunk(data, len(zeros)) {
		if !bytes.Equal(block, zeros[:len(block)]) {
			return false
		}
	}
	return true
}
