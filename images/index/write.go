package index

import (
	"bufio"
	"fmt"
	"io"
)

// write writes the planned tree, the superblock last.
func (b *builder) write() (Summary, error) {
	p, err := newPlan(b.root, b.copied)
	if err != nil {
		return Summary{}, err
	}
	if err := p.writeTo(io.NewOffsetWriter(b.out, p.start)); err != nil {
		return Summary{}, fmt.Errorf("write the index: %w", err)
	}
	if _, err := b.out.WriteAt(superblock(p, b.devices), 0); err != nil {
		return Summary{}, fmt.Errorf("write the index: %w", err)
	}
	return Summary{Files: b.names, Bytes: p.bytes, Size: p.end}, nil
}

// writeTo writes the inodes, and the blocks of directories and symbolic links.
func (p *plan) writeTo(w io.Writer) error {
	out := &paddedWriter{Writer: bufio.NewWriterSize(w, 256<<10)}
	var b []byte
	for n, i := range p.inodes {
		out.padTo(i.pos)
		b = i.encode(b[:0], uint32(n+1))
		out.write(b)
	}
	out.padTo(roundUp(p.next, blockSize))
	for _, i := range p.inodes {
		if i.layout == plain && (i.dir != nil || i.target != "") {
			b = pad(i.encodeData(b[:0]), blockSize)
			out.write(b)
		}
	}
	return out.Flush()
}

// paddedWriter counts its bytes.
type paddedWriter struct {
	*bufio.Writer
	at int64
}

func (w *paddedWriter) write(b []byte) {
	_, _ = w.Write(b) // Flush returns the first error
	w.at += int64(len(b))
}

// padTo writes zeros up to an offset, which is less than a block away.
func (w *paddedWriter) padTo(at int64) {
	var zeros [blockSize]byte
	w.write(zeros[:at-w.at])
}
