package agent

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
)

// A drainCheck is drain.c with a clock and a stream of the test's choice: byte n is n % 251.
type drainCheck struct {
	*harness
	t     *testing.T
	file  streams.LogFile
	limit int64
	total int64
}

func newDrainCheck(t *testing.T, limit int64) *drainCheck {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	d := &drainCheck{newHarness(t, "drain_check", f), t, streams.LogFile{File: f, Ring: true}, limit, 0}
	d.record(0, limit)
	return d
}

func (d *drainCheck) record(bytes int, second int64) {
	d.t.Helper()
	record := binary.NativeEndian.AppendUint32(nil, uint32(bytes))
	d.feed(d.t, 12, binary.NativeEndian.AppendUint64(record, uint64(second)))
}

// feedStream gives the stream some bytes at a second.
func (d *drainCheck) feedStream(bytes int, second int64) {
	d.t.Helper()
	d.record(bytes, second)
	d.total += int64(bytes)
}

// wantedPart is the part of the stream from an offset on.
func wantedPart(from, to int64) []byte {
	var b []byte
	for ; from < to; from++ {
		b = append(b, byte(from%251))
	}
	return b
}

func TestAnyWritesKeepHeadAndTail(t *testing.T) {
	for range 3 {
		d := newDrainCheck(t, rand.Int64N(1<<17))
		for range 40 {
			d.feedStream(rand.IntN(1<<rand.IntN(17)), 1)
			var head, tail bytes.Buffer
			to, omitted := &head, int64(0)
			_, err := d.file.Copy(writer{&to}, 0, func(n int64) error { omitted, to = n, &tail; return nil })
			if err != nil {
				t.Fatal(err)
			}
			// Of 0x80 to 0xbf a character in UTF-8 goes on, and is left out where it was cut.
			if d.total <= d.limit && omitted != 0 || d.total > d.limit && (omitted < d.total-d.limit || omitted > d.total-d.limit+6) {
				t.Fatalf("of %d bytes with the limit %d %d are missing", d.total, d.limit, omitted)
			}
			if !bytes.Equal(head.Bytes(), wantedPart(0, int64(head.Len()))) || !bytes.Equal(tail.Bytes(), wantedPart(d.total-int64(tail.Len()), d.total)) {
				t.Fatalf("of %d bytes with the limit %d others are kept", d.total, d.limit)
			}
			if int64(head.Len()+tail.Len())+omitted != d.total {
				t.Fatalf("of %d bytes %d and %d are kept, %d are missing", d.total, head.Len(), tail.Len(), omitted)
			}
		}
	}
}

// A writer writes to another one of the test's choice.
type writer struct{ to **bytes.Buffer }

func (w writer) Write(b []byte) (int, error) { return (*w.to).Write(b) }

// A stream with output in each second has more seconds than the file has times.
func TestTimesOfLongOutputAreKnownToAPartOfTheirAge(t *testing.T) {
	const step, seconds, begin = 3, 20_000, 1_000
	d := newDrainCheck(t, step*seconds)
	for i := range int64(seconds) {
		d.feedStream(step, begin+i)
	}
	for _, age := range []int64{0, 1, 30, 300, 3_000, seconds - 1} {
		from, err := d.file.SinceBoot(begin + seconds - 1 - age)
		late := step * (seconds - 1 - age)
		if err != nil || from > late || late-from > step*(age/16+1) {
			t.Errorf("since %d s: %d bytes early, %v", age, late-from, err)
		}
	}
}
