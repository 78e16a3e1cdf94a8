package inflate

import (
	"bufio"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
)

// members reads the members of a gzip file, one behind the other.
type members struct {
	in     *bufio.Reader
	member *gzip.Reader
}

func (m *members) Read(b []byte) (int, error) {
	for {
		m.member.Multistream(false)
		n, err := m.member.Read(b)
		if n > 0 && errors.Is(err, io.EOF) {
			err = nil // it comes again
		}
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		if err := m.next(); err != nil {
			return 0, err
		}
	}
}

// next goes to the next member. The error is io.EOF if there is none.
func (m *members) next() error {
	head, err := m.in.Peek(1)
	if err != nil {
		return err
	}
	if head[0] == 0 {
		return m.skipZeros()
	}
	return m.member.Reset(m.in)
}

// skipZeros returns io.EOF if only zeros are left.
func (m *members) skipZeros() error {
	for {
		c, err := m.in.ReadByte()
		if err != nil {
			return err
		}
		if c != 0 {
			return gzip.ErrHeader
		}
	}
}
