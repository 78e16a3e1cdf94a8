package files

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strconv"
	"syscall"
)

// Version of the protocol, which the server says first. Both ends come from one
// version of this module, or do not work together.
const Version = 2

const (
	// chunk is how much of a file one request or answer has.
	chunk = 256 << 10
	// maxFrame is above a chunk, and above listBatch entries with names and
	// targets as long as there can be.
	maxFrame  = 512 << 10
	maxPath   = 4096
	maxName   = 255
	listBatch = 100
	// maxBatch bounds how many events an answer has; their paths fit.
	maxBatch = 100
	// maxHandles is how much may be open at once.
	maxHandles = 256
	// maxRunning requests are worked on at once; further ones are refused.
	maxRunning = 128
)

type op uint8

const (
	opPing op = iota + 1
	opOpen
	opRead
	opPut
	opCreate
	opWrite
	opCommit
	opClose // has no answer
	opStat
	opLstat
	opList
	opNext
	opMkdir
	opMkdirAll
	opRename
	opRemove
	opRemoveAll
	opSymlink
	opChmod
	opWatch
	opEvents
)

// A request is a client's request; each op needs some of the fields.
type request struct {
	id       uint32
	op       op
	handle   uint32
	mode     uint32 // permissions, as the kernel has them
	size     uint32 // how much to read
	offset   int64  // of a read or a write; of a commit, the file's size
	name, to string
	data     []byte
}

// An answer is the result of a request. Code is 0, an errno, or one of the codes.
type answer struct {
	id     uint32
	code   uint32
	handle uint32
	// last says that there is no more of a file or directory.
	last   bool
	infos  []Info
	events []Event
	data   []byte
}

// Codes without an errno.
const (
	codeOwn        = 1 << 16
	codeNotRegular = codeOwn + iota
	codeEscapes
	codeBusy
	codeOther
)

// Errors that a file can have beside those of the kernel.
var (
	// ErrNotRegular: only regular files have contents that can be asked for.
	ErrNotRegular = errors.New("not a regular file")
	// ErrEscapes: a link or ".." leads out of the tree that is served.
	ErrEscapes = errors.New("leads out of the directory")
	// ErrTooMany: more is under way, or open, than the server takes.
	ErrTooMany = errors.New("too much at once")
	errOther   = errors.New("failed")
)

func codeError(code uint32) error {
	switch {
	case code == 0:
		return nil
	case code < codeOwn:
		return syscall.Errno(code)
	case code == codeNotRegular:
		return ErrNotRegular
	case code == codeEscapes:
		return ErrEscapes
	case code == codeBusy:
		return ErrTooMany
	}
	return errOther
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

// frame puts the length before the bytes that build appends.
func frame(size int, build func([]byte) []byte) []byte {
	b := build(make([]byte, 4, 4+size))
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func (r *request) encode() []byte {
	return frame(64+len(r.name)+len(r.to)+len(r.data), func(b []byte) []byte {
		le := binary.LittleEndian
		b = append(le.AppendUint32(b, r.id), byte(r.op))
		b = le.AppendUint32(b, r.handle)
		b = le.AppendUint32(b, r.mode)
		b = le.AppendUint32(b, r.size)
		b = le.AppendUint64(b, uint64(r.offset))
		b = appendText(appendText(b, r.name), r.to)
		return append(le.AppendUint32(b, uint32(len(r.data))), r.data...)
	})
}

func parseRequest(b []byte) (request, error) {
	c := cursor{left: b}
	r := request{
		id: c.word(), op: op(c.byte()), handle: c.word(), mode: c.word(), size: c.word(), offset: c.long(),
		name: c.text(maxPath), to: c.text(maxPath), data: c.bytes(chunk),
	}
	return r, c.end()
}

func (a *answer) encode() []byte {
	return frame(64+len(a.data)+len(a.infos)*64+len(a.events)*64, func(b []byte) []byte {
		le := binary.LittleEndian
		b = le.AppendUint32(b, a.id)
		b = le.AppendUint32(b, a.code)
		b = le.AppendUint32(b, a.handle)
		b = append(b, flag(a.last))
		b = le.AppendUint32(b, uint32(len(a.infos)))
		for i := range a.infos {
			b = a.infos[i].append(b)
		}
		b = le.AppendUint32(b, uint32(len(a.events)))
		for _, e := range a.events {
			b = appendText(append(b, byte(e.Kind), flag(e.Dir)), e.Path)
		}
		return append(le.AppendUint32(b, uint32(len(a.data))), a.data...)
	})
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// parseAnswer reads bytes that code inside may have written.
func parseAnswer(b []byte) (answer, error) {
	c := cursor{left: b}
	a := answer{id: c.word(), code: c.word(), handle: c.word(), last: c.byte() != 0}
	a.infos = list(&c, listBatch, "entries", c.info)
	a.events = list(&c, maxBatch, "events", c.event)
	a.data = c.bytes(chunk)
	return a, c.end()
}

// list reads a number, and as many values of a kind.
func list[T any](c *cursor, limit uint32, kind string, next func() T) (all []T) {
	n := c.word()
	if n > limit {
		c.fail(strconv.Itoa(int(n)) + " " + kind + " at once")
		return nil
	}
	for range n {
		all = append(all, next())
	}
	return all
}

// A cursor reads appended values. After one that it cannot read, all are zero.
type cursor struct {
	left []byte
	err  error
}

func (c *cursor) fail(text string) {
	if c.err == nil {
		c.err = errors.New(text)
	}
	c.left = nil
}

func (c *cursor) take(n int) []byte {
	if n > len(c.left) {
		c.fail("a frame that ends too early")
		return make([]byte, min(n, 8))
	}
	b := c.left[:n]
	c.left = c.left[n:]
	return b
}

func (c *cursor) byte() byte   { return c.take(1)[0] }
func (c *cursor) word() uint32 { return binary.LittleEndian.Uint32(c.take(4)) }

// long is a number that is not negative.
func (c *cursor) long() int64 {
	n := c.signed()
	if n < 0 {
		c.fail("a negative number")
		return 0
	}
	return n
}

func (c *cursor) signed() int64 { return int64(binary.LittleEndian.Uint64(c.take(8))) }

func (c *cursor) bytes(limit uint32) []byte {
	n := c.word()
	if n > limit {
		c.fail(strconv.Itoa(int(n)) + " bytes, above " + strconv.Itoa(int(limit)))
		return nil
	}
	if b := c.take(int(n)); c.err == nil {
		return b
	}
	return nil
}

func (c *cursor) text(limit uint32) string { return string(c.bytes(limit)) }

func (c *cursor) end() error {
	if c.err == nil && len(c.left) > 0 {
		c.err = errors.New("a frame with " + strconv.Itoa(len(c.left)) + " bytes too many")
	}
	return c.err
}

// readFrame returns the next frame, in buf if it fits. io.EOF is an end where one
// may be.
func readFrame(r io.Reader, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxFrame {
		return nil, errors.New("a frame of " + strconv.Itoa(int(n)) + " bytes, above " + strconv.Itoa(maxFrame))
	}
	if int(n) > len(buf) {
		buf = make([]byte, n)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		return nil, errors.Join(io.ErrUnexpectedEOF, err)
	}
	return buf[:n], nil
}

// nanoseconds that a time.Time holds.
const minTime, maxTime = math.MinInt64 / 2, math.MaxInt64 / 2
