package streams

import (
	"encoding/binary"
	"os"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// A LogWriter writes a File as PID 1 does, for providers and tests without a PID 1. Its disk is never
// full, and it notes the first times only. It is safe for concurrent use.
type LogWriter struct {
	file       *os.File
	head, tail int64

	// mu guards the fields below.
	mu    sync.Mutex
	total int64
	times int64
	last  uint32
}

// NewLogWriter returns the writer of an empty file that keeps limit bytes.
func NewLogWriter(f *os.File, limit int64) *LogWriter {
	return &LogWriter{file: f, head: limit - limit/2, tail: limit / 2}
}

// Write keeps the bytes that belong to the head or the tail.
func (w *LogWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.noteTime(); err != nil {
		return 0, err
	}
	if err := w.publish(w.total + int64(len(b))); err != nil {
		return 0, err
	}
	for left := b; len(left) > 0; {
		n := int64(len(left))
		at := w.total
		switch {
		case at < w.head:
			n = min(n, w.head-at)
		case w.tail > 0:
			at = w.head + (at-w.head)%w.tail
			n = min(n, w.head+w.tail-at)
		}
		if at < w.head+w.tail {
			if _, err := w.file.WriteAt(left[:n], Start+at); err != nil {
				return 0, err
			}
		}
		w.total += n
		left = left[n:]
	}
	return len(b), w.publish(w.total)
}

// publish writes the header.
func (w *LogWriter) publish(begun int64) error {
	var b [headerSize]byte
	check := uint64(headerCheck)
	for i, field := range []int64{w.total, begun, w.head, w.tail, w.times} {
		binary.NativeEndian.PutUint64(b[8*i:], uint64(field))
		check ^= uint64(field)
	}
	binary.NativeEndian.PutUint64(b[8*(headerFields-1):], check)
	_, err := w.file.WriteAt(b[:], 0)
	return err
}

// noteTime notes the second of the next byte.
func (w *LogWriter) noteTime() error {
	boot, err := process.SinceBoot()
	if err != nil {
		return err
	}
	second := uint32(boot / time.Second)
	if w.times > 0 && w.last == second || w.times == mostTimes {
		return nil
	}
	var b [timeSize]byte
	binary.NativeEndian.PutUint32(b[:], second)
	binary.NativeEndian.PutUint64(b[8:], uint64(w.total))
	_, err = w.file.WriteAt(b[:], headerSize+w.times*timeSize)
	w.times, w.last = w.times+1, second
	return err
}
