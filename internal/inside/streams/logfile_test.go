package streams

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newFile is a file that keeps this many bytes, with its writer.
func newFile(t testing.TB, limit int64) (LogFile, *LogWriter) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return LogFile{File: f, Ring: true}, NewLogWriter(f, limit)
}

func write(t testing.TB, w *LogWriter, text string) {
	t.Helper()
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// read is the kept output from an offset on, with the missing bytes as "<n>".
func read(t testing.TB, f LogFile, from int64) (string, int64) {
	t.Helper()
	var b strings.Builder
	next, err := f.Copy(&b, from, func(n int64) error { fmt.Fprintf(&b, "<%d>", n); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), next
}

func TestHeadAndTailAreKept(t *testing.T) {
	for _, tt := range []struct {
		limit  int64
		writes []string
		want   string
	}{
		{10, nil, ""},
		{10, []string{"abc"}, "abc"},
		{10, []string{"abcdefghij"}, "abcdefghij"},
		{10, []string{"abcdefghijk"}, "abcde<1>ghijk"},
		{10, []string{"abcdefgh", "ijklm", "n", "opqrstuvwxyz"}, "abcde<16>vwxyz"},
		{11, []string{"abcdefghijklmnopqrstuvwxyz"}, "abcdef<15>vwxyz"},
		{1, []string{"ab", "c"}, "a<2>"},
		{10, []string{"abcdäöüéß"}, "abcd<6>éß"}, // no part of ä, and none of ü
	} {
		f, w := newFile(t, tt.limit)
		for _, text := range tt.writes {
			write(t, w, text)
		}
		if got, _ := read(t, f, 0); got != tt.want {
			t.Errorf("%d bytes of %q: got %q, want %q", tt.limit, tt.writes, got, tt.want)
		}
		omitted := int64(len(strings.Join(tt.writes, ""))) - tt.limit
		if n, err := f.Omitted(); err != nil || n != max(0, omitted) {
			t.Errorf("%q: %d bytes are missing, %v; want %d", tt.writes, n, err, omitted)
		}
		if info, err := f.Stat(); err != nil || info.Size() > Start+tt.limit {
			t.Errorf("%q: the file has %d bytes, %v", tt.writes, info.Size(), err)
		}
	}
}

// A follower gets all that is written after it has begun, with any amount before.
func TestAFollowerGetsNewOutputAfterAnyAmount(t *testing.T) {
	f, w := newFile(t, 100)
	write(t, w, strings.Repeat("x", 1000))
	_, next := read(t, f, 0)
	for i := range 500 {
		text := fmt.Sprintf("line %d\n", i)
		write(t, w, text)
		var got string
		if got, next = read(t, f, next); got != text {
			t.Fatalf("got %q, want %q", got, text)
		}
	}
	write(t, w, strings.Repeat("y", 1000)) // faster than the follower
	if got, _ := read(t, f, next); got != "<950>"+strings.Repeat("y", 50) {
		t.Errorf("got %q", got)
	}
}

// A copy beside a writer has no byte at a wrong place.
func TestACopyBesideAWriterIsNeverMixed(t *testing.T) {
	f, w := newFile(t, 1<<16)
	// Each word of the stream tells its own offset.
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		var b []byte
		for at := uint64(0); ; {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			b = b[:0]
			for range 1 + rand.IntN(1000) {
				b = fmt.Appendf(b, "%07x,", at/8)
				at += 8
			}
			if _, err := w.Write(b); err != nil {
				done <- err
				return
			}
		}
	}()
	var next int64
	for range 300 {
		var b bytes.Buffer
		at := next
		check := func() {
			if rest := at % 8; rest != 0 { // of a word that was cut
				at += int64(len(b.Next(int(8 - rest))))
			}
			for b.Len() >= 8 {
				var word [8]byte
				_, _ = b.Read(word[:])
				if want := fmt.Sprintf("%07x,", at/8); string(word[:]) != want {
					t.Fatalf("at %d are %q, want %q", at, word, want)
				}
				at += 8
			}
		}
		var err error
		next, err = f.Copy(&b, next, func(n int64) error {
			check()
			at += int64(b.Len())
			b.Reset()
			at += n
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		check()
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A command can write faster than a reader takes its output.
func TestACopyOfThePresentOutputEnds(t *testing.T) {
	for _, tt := range []struct {
		limit       int64
		first, more string
		lines       int
		want        string
	}{
		{100, "a\nb\nc\n", "d\n", 2, "b\nc\n"},
		{100, "a\nb\nc\n", "d\n", 0, "a\nb\nc\n"},
		{10, "a\nb\nc\nd\ne\nf\n", "g\n", 1, "f\n"},
		{10, "a\nb\nc\nd\ne\nf\n", "g\nh\ni\nj\n", 0, "a\nb\nc<10>\ni\nj\n"}, // the tail went during the copy of the head
		{10, "a\nb\nc\nd\ne\nf\n", "g\nh\ni\nj\n", 4, "b\nc<7>"},
	} {
		f, w := newFile(t, tt.limit)
		write(t, w, tt.first)
		var b strings.Builder
		growing := writerFunc(func(p []byte) (int, error) {
			if b.Len() > 1000 {
				t.Fatalf("%d lines of %q: the copy has no end", tt.lines, tt.first)
			}
			write(t, w, tt.more)
			return b.Write(p)
		})
		omit := func(n int64) error { fmt.Fprintf(&b, "<%d>", n); return nil }
		var err error
		if tt.lines == 0 {
			_, err = f.CopyAllPresent(growing, 0, omit)
		} else {
			var from, end int64
			if from, end, err = f.LastLines(tt.lines); err != nil {
				t.Fatal(err)
			}
			_, err = f.CopyPresent(growing, from, end, omit)
		}
		if got := b.String(); err != nil || got != tt.want {
			t.Errorf("%d lines of %q: %q, %v, want %q", tt.lines, tt.first, got, err, tt.want)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestLastLines(t *testing.T) {
	for _, tt := range []struct {
		limit int64
		text  string
		lines int
		want  string
	}{
		{100, "a\nb\nc\n", 2, "b\nc\n"},
		{100, "a\nb\nc", 2, "b\nc"},
		{100, "a\nb\nc\n", 9, "a\nb\nc\n"},
		{100, "a\nb\nc\n", -1, ""},
		{100, "\n\n\n", 2, "\n\n"},
		{10, "a\nb\nc\nd\ne\nf\ng\nh\n", 2, "g\nh\n"},
		{10, "a\nb\nc\nd\ne\nf\ng\nh\n", 4, "b\nc<6>\ng\nh\n"},
		{10, "", 3, ""},
	} {
		f, w := newFile(t, tt.limit)
		if tt.text != "" {
			write(t, w, tt.text)
		}
		from, _, err := f.LastLines(tt.lines)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := read(t, f, from); got != tt.want {
			t.Errorf("%d lines of %q: got %q, want %q", tt.lines, tt.text, got, tt.want)
		}
	}
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	fmt.Fprint(plain, "a\nb\nc\n")
	f := LogFile{File: plain}
	if from, _, err := f.LastLines(1); err != nil || from != 4 {
		t.Errorf("of a plain file: %d, %v", from, err)
	}
	if got, _ := read(t, f, 0); got != "a\nb\nc\n" {
		t.Errorf("a plain file: %q", got)
	}
}

func TestOffsetOfATime(t *testing.T) {
	var times []byte
	for _, entry := range []struct {
		second, merged uint32
		offset         uint64
	}{{100, 1, 0}, {200, 0, 50}, {205, 0, 70}, {300, 0, 90}} {
		times = binary.NativeEndian.AppendUint32(times, entry.second)
		times = binary.NativeEndian.AppendUint32(times, entry.merged)
		times = binary.NativeEndian.AppendUint64(times, entry.offset)
	}
	for second, want := range map[int64]int64{-5: 0, 100: 0, 101: 0, 200: 0, 201: 70, 205: 70, 206: 90, 300: 90, 301: 120} {
		if got := offsetAt(times, second, 120); got != want {
			t.Errorf("second %d: got %d, want %d", second, got, want)
		}
	}
}

func TestSinceLeavesOutEarlierSeconds(t *testing.T) {
	f, w := newFile(t, 100)
	write(t, w, "early\n")
	from, err := f.Since(time.Now().Add(-time.Hour))
	if got, _ := read(t, f, from); err != nil || got != "early\n" {
		t.Errorf("since an hour: %q, %v", got, err)
	}
	from, err = f.Since(time.Now().Add(time.Hour))
	if got, _ := read(t, f, from); err != nil || got != "" {
		t.Errorf("since a later time: %q, %v", got, err)
	}
}

// PID 1 writes the file. A header that is no header is an error, and never a wrong offset.
func FuzzReadersSurviveAnyFile(f *testing.F) {
	sample, w := newFile(f, 100)
	if _, err := w.Write(bytes.Repeat([]byte("line\n"), 100)); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(sample.Name())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[:headerSize+timeSize], b[Start:], uint64(50))
	f.Add(b[:headerSize], []byte{}, uint64(1)<<63)
	f.Fuzz(func(t *testing.T, head, data []byte, tail uint64) {
		if len(head) < headerSize || len(head) > Start {
			return
		}
		binary.NativeEndian.PutUint64(head[8*3:], tail)
		check := uint64(headerCheck)
		for i := range headerFields - 1 {
			check ^= binary.NativeEndian.Uint64(head[8*i:])
		}
		binary.NativeEndian.PutUint64(head[8*(headerFields-1):], check)
		fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		file := LogFile{File: os.NewFile(uintptr(fd), "output"), Ring: true}
		defer file.Close()
		if _, err := file.WriteAt(head, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt(data, Start); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		_, _ = file.Copy(&out, 0, func(n int64) error {
			if n < 0 {
				t.Fatal("a negative number of bytes is missing")
			}
			return nil
		})
		_, _, _ = file.LastLines(3)
		_, _ = file.Since(time.Now())
		_, _ = file.Omitted()
		if out.Len() > len(data) {
			t.Fatalf("%d bytes of %d", out.Len(), len(data))
		}
	})
}

// The writer of a header can lose the processor in the middle of it.
func TestAHeaderOfASlowWriterIsReadLater(t *testing.T) {
	f, w := newFile(t, 10)
	write(t, w, "abc")
	if _, err := f.WriteAt([]byte{1}, 8*(headerFields-1)); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(100*time.Millisecond, func() { _ = w.publish(3) })
	defer timer.Stop()
	if got, _ := read(t, f, 0); got != "abc" {
		t.Errorf("%q is kept", got)
	}
}
