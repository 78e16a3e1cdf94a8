package patch

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/rogpeppe/go-internal/diff"
)

const (
	// maxSize bounds each file.
	maxSize = 16 << 20
	// maxLines bounds files that are compared: at both bounds, two of them take
	// 200 MiB and a second.
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

func (t text) fits() bool { return !t.binary && !t.large }

// read reads what open opens.
func read(open func(string) (*os.File, error), path string) (t text, err error) {
	f, err := open(path)
	if err != nil {
		return t, err
	}
	defer f.Close()
	t.data, err = io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return t, fmt.Errorf("read %s: %w", path, err)
	}
	t.binary = bytes.IndexByte(t.data[:min(len(t.data), binaryWithin)], 0) >= 0
	t.large = len(t.data) > maxSize
	return t, nil
}

// canCompare reports whether two files can be in a patch as one that was edited.
func canCompare(old, now text) bool {
	newline := []byte("\n")
	return old.fits() && now.fits() &&
		bytes.Count(old.data, newline) <= maxLines && bytes.Count(now.data, newline) <= maxLines
}

// hunk is a whole file, added or removed as the mark says.
func hunk(w *bytes.Buffer, mark byte, data []byte) {
	lines := bytes.Count(data, []byte("\n"))
	whole := bytes.HasSuffix(data, []byte("\n"))
	if !whole {
		lines++
	}
	if mark == '+' {
		fmt.Fprintf(w, "@@ -0,0 +1,%d @@\n", lines)
	} else {
		fmt.Fprintf(w, "@@ -1,%d +0,0 @@\n", lines)
	}
	for line := range bytes.Lines(data) {
		w.WriteByte(mark)
		w.Write(line)
	}
	if !whole {
		w.WriteString("\n\\ No newline at end of file\n")
	}
}

// hunks is what makes old into now, without the lines that name the files.
// The diff is an anchored one, which takes n log n time for any input.
func hunks(old, now []byte) []byte {
	d := diff.Diff("a", old, "b", now)
	for range 3 { // diff, ---, +++
		_, d, _ = bytes.Cut(d, []byte("\n"))
	}
	return d
}
