package patch

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// noBlob is the id that git gives to a missing file.
const noBlob = "0000000000000000000000000000000000000000"

// blobID is the id that git gives to a file of this content, in a repository
// with SHA-1.
func blobID(content []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(content))
	h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

// literals writes the end of a section that turns old into now, as
// diff.c:emit_binary_diff() does. The second literal is for git apply -R.
func literals(w *bytes.Buffer, old, now []byte) {
	w.WriteString("GIT binary patch\n")
	literal(w, now)
	literal(w, old)
}

// literal writes one content and the empty line that ends a literal.
func literal(w *bytes.Buffer, content []byte) {
	fmt.Fprintf(w, "literal %d\n", len(content))
	lines := base85Lines{to: w}
	z := zlib.NewWriter(&lines)
	_, _ = z.Write(content) // base85Lines returns no error
	_ = z.Close()
	lines.end()
	w.WriteByte('\n')
}

const (
	// base85Digits are git's, base85.c. Package ascii85 has other digits.
	base85Digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
	// bytesPerLine is the largest number of bytes that git takes in one line.
	bytesPerLine = 52
)

// base85Lines writes bytes as lines of base 85. A line begins with the number of
// its bytes as a letter: A to Z for 1 to 26, a to z for 27 to 52.
type base85Lines struct {
	to   *bytes.Buffer
	line [bytesPerLine]byte
	used int
}

func (l *base85Lines) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := copy(l.line[l.used:], rest)
		rest = rest[n:]
		if l.used += n; l.used == bytesPerLine {
			l.end()
		}
	}
	return len(p), nil
}

// end writes the line that has been begun, if there is one.
func (l *base85Lines) end() {
	if l.used == 0 {
		return
	}
	if l.used <= 26 {
		l.to.WriteByte('A' + byte(l.used-1))
	} else {
		l.to.WriteByte('a' + byte(l.used-27))
	}
	clear(l.line[l.used:]) // git pads the last four bytes with zeros
	for at := 0; at < l.used; at += 4 {
		word := binary.BigEndian.Uint32(l.line[at:])
		var digits [5]byte
		for i := len(digits) - 1; i >= 0; i-- {
			digits[i] = base85Digits[word%85]
			word /= 85
		}
		l.to.Write(digits[:])
	}
	l.to.WriteByte('\n')
	l.used = 0
}
