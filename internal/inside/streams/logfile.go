package streams

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"time"
	"unicode/utf8"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// A LogFile is a file with the output of a detached command, open for reading. The command may still
// write. Offsets are those of the command's stream, with the bytes that the file has not kept.
type LogFile struct {
	*os.File
	// Ring says that the file has the form of struct output_header in
	// cmd/sandbox-agent/protocol.h, with head, tail and times. Otherwise the file has the first bytes
	// of the stream, as they are.
	Ring bool
}

// The form of a file with head and tail.
const (
	headerSize = 64
	mostTimes  = 2044
	timeSize   = 16
	// Start is where the bytes of the stream begin. The header and the times lie before.
	Start        = 1 << 15
	headerCheck  = 0x5bf03635dd9b1e27
	headerFields = 7
)

// A logExtent tells which bytes of a stream are kept: those before head, and those from low on.
type logExtent struct {
	total, head, low, tail int64
	times                  int
	thinned                uint64
}

// errDamaged is the error of a file that PID 1 has not written.
var errDamagedLog = errors.New("its header is damaged")

// headerTries bounds the reads of a header that PID 1 writes meanwhile. The kernel can take the processor from PID 1 in
// the middle of a header, so later reads wait.
const (
	headerTries = 100
	quickTries  = 20
	headerWait  = 10 * time.Millisecond
)

// extent reads the header.
func (k LogFile) extent() (e logExtent, err error) {
	if !k.Ring {
		info, err := k.Stat()
		if err != nil {
			return e, err
		}
		return logExtent{total: info.Size(), head: info.Size(), low: info.Size()}, nil
	}
	var b [headerSize]byte
	for try := range headerTries {
		if try >= quickTries {
			time.Sleep(headerWait)
		}
		n, err := k.ReadAt(b[:], 0)
		if n == 0 && errors.Is(err, io.EOF) { // no output yet
			return e, nil
		}
		if n == len(b) {
			err = nil
		}
		if err != nil {
			return e, err
		}
		if e, ok := parseHeader(b[:]); ok {
			return e, nil
		}
	}
	return e, fmt.Errorf("read %s: %w", k.Name(), errDamagedLog)
}

// parseHeader returns false for a header that was read while it was written.
func parseHeader(b []byte) (e logExtent, ok bool) {
	var f [headerFields]uint64
	check := uint64(headerCheck)
	for i := range f {
		f[i] = binary.NativeEndian.Uint64(b[8*i:])
		check ^= f[i]
	}
	total, begun, head, tail := int64(f[0]), int64(f[1]), int64(f[2]), int64(f[3])
	if check != 0 || min(total, begun, head, tail) < 0 || begun < total || f[4] > mostTimes || head > head+tail {
		return e, false
	}
	e = logExtent{total: total, head: min(head, total), tail: tail, times: int(f[4]), thinned: f[5]}
	e.low = min(total, max(head, begun-tail))
	if total <= head {
		e.low = total
	}
	return e, true
}

// place is where a byte lies in the file, and how many follow it there in a row.
func (k LogFile) place(e logExtent, at int64) (place, row int64) {
	switch {
	case !k.Ring:
		return at, e.total - at
	case at < e.head:
		return Start + at, e.head - at
	}
	round := (at - e.head) % e.tail
	return Start + e.head + round, min(e.tail-round, e.total-at)
}

// Omitted is the number of bytes that the file has not kept.
func (k LogFile) Omitted() (int64, error) {
	e, err := k.extent()
	return e.low - e.head, err
}

// End is the number of bytes of the stream so far.
func (k LogFile) End() (int64, error) {
	e, err := k.extent()
	return e.total, err
}

// raceTries bounds the reads of bytes that PID 1 overwrites meanwhile.
const raceTries = 16

// Copy copies the kept bytes from an offset on, and returns the offset for the next Copy. omitted
// is called where bytes are missing, with their number. There it leaves out the parts of a
// character in UTF-8 that was cut.
func (k LogFile) Copy(w io.Writer, from int64, omitted func(int64) error) (next int64, err error) {
	return k.copy(w, from, math.MaxInt64, false, omitted)
}

// CopyPresent is Copy up to an end that LastLines has returned. Without it a copy of a stream that grows faster
// than w takes it would have no end.
func (k LogFile) CopyPresent(w io.Writer, from, end int64, omitted func(int64) error) (next int64, err error) {
	return k.copy(w, from, end, false, omitted)
}

// CopyAllPresent is CopyPresent up to the present end. If the tail is overwritten before the copy comes to it, the
// copy takes the tail of that time.
func (k LogFile) CopyAllPresent(w io.Writer, from int64, omitted func(int64) error) (next int64, err error) {
	end, err := k.End()
	if err != nil {
		return from, err
	}
	return k.copy(w, from, end, true, omitted)
}

func (k LogFile) copy(w io.Writer, from, end int64, renews bool, omitted func(int64) error) (next int64, err error) {
	b := Buffers.Get().(*[]byte)
	defer Buffers.Put(b)
	for races, short := 0, int64(0); ; {
		e, err := k.extent()
		isGap := from >= e.head && from < e.low
		if isGap && renews {
			end, renews = e.total, false
		}
		e.total = min(e.total, end)
		if err != nil || from >= e.total || races > raceTries {
			return from, err
		}
		if isGap {
			at := e.total
			if e.low < e.total {
				at = min(at, e.low+k.broken(e))
			}
			if err := omitted(at - from + short); err != nil {
				return from, err
			}
			from, short = at, 0
			continue
		}
		piece, err := k.read(e, from, (*b)[:min(bufferSize, e.total-from)])
		if err != nil || len(piece) == 0 {
			return from, err
		}
		if now, err := k.extent(); err != nil || !now.covers(e, from) {
			if err != nil {
				return from, err
			}
			races++
			continue
		}
		cut := piece
		if from+int64(len(piece)) == e.head && e.low > e.head {
			cut = WholeEnd(piece)
		}
		if n, err := w.Write(cut); err != nil {
			return from + int64(n), err
		}
		from += int64(len(piece))
		short = int64(len(piece) - len(cut))
	}
}

// covers says whether the byte that was read by an older extent was not overwritten meanwhile.
func (e logExtent) covers(old logExtent, at int64) bool {
	return at < min(e.head, old.head) || e.head == old.head && e.tail == old.tail && at >= e.low
}

// read reads some bytes from an offset on, and none from a file that was truncated with its sandbox.
func (k LogFile) read(e logExtent, from int64, b []byte) ([]byte, error) {
	place, row := k.place(e, from)
	b = b[:min(int64(len(b)), row)]
	n, err := k.ReadAt(b, place)
	if n > 0 || errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

// broken is how many bytes at the begin of the tail belong to a character that was cut.
func (k LogFile) broken(e logExtent) int64 {
	var b [utf8.UTFMax - 1]byte
	if e.low >= e.total {
		return 0
	}
	got, err := k.read(e, e.low, b[:])
	if err != nil {
		return 0
	}
	return int64(len(got) - len(WholeStart(got)))
}

// WholeStart leaves out the rest of a character at the begin of a text in UTF-8.
func WholeStart(b []byte) []byte {
	n := 0
	for n < len(b) && n < utf8.UTFMax-1 && !utf8.RuneStart(b[n]) {
		n++
	}
	return b[n:]
}

// WholeEnd leaves out the begin of a character at the end of a text in UTF-8.
func WholeEnd(b []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if at := len(b) - n; utf8.RuneStart(b[at]) {
			if utf8.FullRune(b[at:]) {
				return b
			}
			return b[:at]
		}
	}
	return b
}

// LastLines are the offsets of the last n lines that are kept, and of their end.
func (k LogFile) LastLines(n int) (from, end int64, err error) {
	e, err := k.extent()
	if err == nil {
		from, err = k.lastLines(e, n)
	}
	return from, e.total, err
}

func (k LogFile) lastLines(e logExtent, n int) (int64, error) {
	if n <= 0 {
		return e.total, nil
	}
	end := e.total
	for end > 0 {
		first := int64(0)
		if end > e.low {
			first = e.low
		} else if end > e.head {
			end = e.head
			continue
		}
		b := make([]byte, min(end-first, bufferSize))
		start := end - int64(len(b))
		for done := 0; done < len(b); {
			piece, err := k.read(e, start+int64(done), b[done:])
			if err != nil || len(piece) == 0 {
				return end, err
			}
			done += len(piece)
		}
		for i := len(b) - 1; i >= 0; i-- {
			if b[i] != '\n' || start+int64(i) == e.total-1 {
				continue
			}
			if n--; n == 0 {
				return start + int64(i) + 1, nil
			}
		}
		end = start
	}
	return 0, nil
}

// Since is the offset of the first byte that was written at a time or later, or of an earlier one:
// times count whole seconds, and PID 1 drops older times, so that up to 1/32 of the age of
// the time may come before it. A file without times is kept whole.
func (k LogFile) Since(t time.Time) (int64, error) {
	boot, err := process.SinceBoot()
	if err != nil {
		return 0, err
	}
	now := int64(boot / time.Second)
	return k.SinceBoot(now - (time.Now().Unix() - t.Unix()) - 1) // the two clocks do not begin a second together
}

// SinceBoot is Since for a second of CLOCK_BOOTTIME.
func (k LogFile) SinceBoot(second int64) (int64, error) {
	if !k.Ring {
		return 0, nil
	}
	for range headerTries {
		e, err := k.extent()
		if err != nil || e.total == 0 {
			return 0, err
		}
		b := make([]byte, e.times*timeSize)
		if n, err := k.ReadAt(b, headerSize); n < len(b) {
			return 0, err
		}
		now, err := k.extent()
		if err != nil {
			return 0, err
		}
		if e.times > 0 && now.thinned == e.thinned {
			return offsetAt(b, second, e.total), nil
		}
	}
	return 0, nil
}

// offsetAt finds the offset of a second in the times of a file.
func offsetAt(times []byte, second, total int64) int64 {
	n := len(times) / timeSize
	word := func(i, at int) uint32 { return binary.NativeEndian.Uint32(times[i*timeSize+at:]) }
	offset := func(i int) int64 { return int64(binary.NativeEndian.Uint64(times[i*timeSize+8:])) }
	i := sort.Search(n, func(i int) bool { return int64(word(i, 0)) >= second })
	switch {
	case i > 0 && word(i-1, 4) != 0: // there were times between the two
		return max(0, min(total, offset(i-1)))
	case i == n:
		return total
	}
	return max(0, min(total, offset(i)))
}
