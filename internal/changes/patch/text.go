package patch

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/rogpeppe/go-internal/diff"
)

const (
	// maxSize bounds each file: a patch holds no larger one. It bounds the
	// memory, too, since a file and its section are in memory as a whole.
	maxSize = 16 << 20
	// maxLines bounds the lines of files that are compared: at both bounds, two
	// of them take 200 MiB and a second.
	maxLines = 1 << 18
	// binaryWithin is where git looks for a NUL, xdiff-interface.c.
	binaryWithin = 8000
)

// text is a file's content, if a patch can have it.
type text struct {
	data   []byte
	binary bool
	large  bool
}

// fitsPatch reports whether a patch can hold the file, or a short one.
func (t text) fitsPatch(short bool) bool { return !t.large && (!short || !t.binary) }

// read reads the file of open.
func read(open func(string) (*os.File, error), path string) (t text, err error) {
	f, err := open(path)
	if err != nil {
		return t, err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return t, err
	}
	t.data, err = io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return t, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(t.data)) < min(before.Size(), maxSize+1) {
		return t, fmt.Errorf("read %s: it became shorter meanwhile; pause the sandbox, or wait until it is done", path)
	}
	t.binary = bytes.IndexByte(t.data[:min(len(t.data), binaryWithin)], 0) >= 0
	t.large = len(t.data) > maxSize
	return t, nil
}

// replace is one hunk that removes all of old and adds all of now.
func replace(w *bytes.Buffer, old, now []byte) {
	fmt.Fprintf(w, "@@ -%s +%s @@\n", span(old), span(now))
	lines(w, '-', old)
	lines(w, '+', now)
}

// span is where a hunk of a whole file begins, and its number of lines.
func span(data []byte) string {
	if len(data) == 0 {
		return "0,0"
	}
	n := bytes.Count(data, []byte("\n"))
	if !bytes.HasSuffix(data, []byte("\n")) {
		n++
	}
	return fmt.Sprintf("1,%d", n)
}

// lines writes each line of a file after a mark.
func lines(w *bytes.Buffer, mark byte, data []byte) {
	for line := range bytes.Lines(data) {
		w.WriteByte(mark)
		w.Write(line)
	}
	if len(data) > 0 && !bytes.HasSuffix(data, []byte("\n")) {
		w.WriteString("\n\\ No newline at end of file\n")
	}
}

// hunks are the lines that turn old into now, without the lines that name the files. The
// diff is an anchored one, which takes n log n time for any input. A file of more than
// maxLines is replaced as a whole.
func hunks(w *bytes.Buffer, old, now []byte) {
	if bytes.Count(old, []byte("\n")) > maxLines || bytes.Count(now, []byte("\n")) > maxLines {
		replace(w, old, now)
		return
	}
	d := diff.Diff("a", old, "b", now)
	for range 3 { // diff, ---, +++
		_, d, _ = bytes.Cut(d, []byte("\n"))
	}
	w.Write(d)
}
