package protocol

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A list of marks or stamps has, for each path, the path and a word, each with a NUL
// byte behind it. It comes in pieces, so that neither side has all of it on the wire.

// Piece is a part of a list.
type Piece struct {
	Bytes []byte `json:"bytes,omitempty"`
	// Last says that the list ends with this piece.
	Last bool `json:"last,omitempty"`
}

const (
	// PieceSize bounds the bytes of a piece.
	PieceSize = 64 << 10
	// maxList bounds a list, in bytes.
	maxList = 64 << 20
)

// Stamp is a layer.Stamp and its path, which may be any bytes but NUL.
type Stamp struct {
	Path    []byte `json:"path"`
	Time    int64  `json:"ctime_ns"`
	Source  int64  `json:"source_ns,omitempty"`
	Inode   uint64 `json:"inode,omitempty"`
	Touched bool   `json:"touched,omitempty"`
}

// Plain is the stamp without its path.
func (s Stamp) Plain() layer.Stamp {
	return layer.Stamp{CTime: s.Time, Source: s.Source, Inode: s.Inode, Touched: s.Touched}
}

// StampList is a list of stamps in the order of their paths.
func StampList(stamps map[string]layer.Stamp) []Stamp {
	all := make([]Stamp, 0, len(stamps))
	for _, p := range slices.Sorted(maps.Keys(stamps)) {
		all = append(all, Stamp{[]byte(p), stamps[p].CTime, stamps[p].Source, stamps[p].Inode, stamps[p].Touched})
	}
	return all
}

// ComparePaths is the order of a list of stamps.
func (s Stamp) ComparePaths(t Stamp) int { return bytes.Compare(s.Path, t.Path) }

// A stamp is a time. A regular file also has the time of its source, and a directory its
// inode. Lists of earlier versions may have the time alone.
const (
	sourceSeparator = ";"
	inodeSeparator  = ","
	touchedEnd      = "t"
)

// AppendMark adds a mark to a list.
func AppendMark(b []byte, path string, m layer.Mark) []byte {
	return append(append(append(append(b, path...), 0), layer.EncodeMark(m)...), 0)
}

// AppendStamp adds a stamp to a list. Its path has no NUL byte.
func AppendStamp(b []byte, s Stamp) []byte {
	b = append(append(b, s.Path...), 0)
	b = strconv.AppendInt(b, s.Time, 10)
	if s.Source != 0 {
		b = append(b, sourceSeparator...)
		b = strconv.AppendInt(b, s.Source, 10)
	}
	if s.Inode != 0 {
		b = append(b, inodeSeparator...)
		b = strconv.AppendUint(b, s.Inode, 10)
	}
	if s.Touched {
		b = append(b, touchedEnd...)
	}
	return append(b, 0)
}

// A listReader reads the pairs of a list.
type listReader struct{ r *bufio.Reader }

// next returns io.EOF at the end of the list.
func (l listReader) next() (path, word string, err error) {
	if path, err = l.r.ReadString(0); err == nil {
		word, err = l.r.ReadString(0)
	} else if path == "" {
		return "", "", err
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return "", "", fmt.Errorf("list of paths: %w", err)
	}
	return path[:len(path)-1], word[:len(word)-1], nil
}

// A StampReader reads a list of stamps, one at a time.
type StampReader struct{ list listReader }

// NewStampReader returns a reader of a list of stamps.
func NewStampReader(r io.Reader) *StampReader {
	return &StampReader{listReader{bufio.NewReaderSize(r, PieceSize)}}
}

// Next returns io.EOF at the end of the list.
func (r *StampReader) Next() (Stamp, error) {
	path, word, err := r.list.next()
	if err != nil {
		return Stamp{}, err
	}
	s := Stamp{Path: []byte(path)}
	text, touched := strings.CutSuffix(word, touchedEnd)
	text, inode, hasInode := strings.Cut(text, inodeSeparator)
	ctime, source, hasSource := strings.Cut(text, sourceSeparator)
	s.Time, err = strconv.ParseInt(ctime, 10, 64)
	if err == nil && hasSource {
		s.Source, err = strconv.ParseInt(source, 10, 64)
	}
	if err == nil && hasInode {
		s.Inode, err = strconv.ParseUint(inode, 10, 64)
	}
	if err != nil {
		return s, fmt.Errorf("stamps: %q is no stamp", word)
	}
	s.Touched = touched
	return s, nil
}

// DecodeStamps is a list of stamps by their paths.
func DecodeStamps(b []byte) (map[string]layer.Stamp, error) {
	stamps := map[string]layer.Stamp{}
	for r := NewStampReader(bytes.NewReader(b)); ; {
		s, err := r.Next()
		if errors.Is(err, io.EOF) {
			return stamps, nil
		}
		if err != nil {
			return nil, err
		}
		stamps[string(s.Path)] = s.Plain()
	}
}

// DecodeMarks is a list of marks by their paths.
func DecodeMarks(b []byte) (map[string]layer.Mark, error) {
	marks := map[string]layer.Mark{}
	for r := (listReader{bufio.NewReader(bytes.NewReader(b))}); ; {
		path, word, err := r.next()
		if errors.Is(err, io.EOF) {
			return marks, nil
		}
		if err != nil {
			return nil, err
		}
		if marks[path], err = layer.DecodeMark(word); err != nil {
			return nil, err
		}
	}
}

// readList puts the pieces of a list together.
func (c *Client) readList(ctx context.Context, ch *channel.Conn) ([]byte, error) {
	var all []byte
	for {
		a, files, err := OpLayers.receive(ctx, c, ch)
		descriptor.Close(files...)
		if err != nil {
			return nil, err
		}
		if a.Piece == nil {
			return nil, errAnswer
		}
		if all = append(all, a.Piece.Bytes...); len(all) > maxList {
			return nil, fmt.Errorf("a list of more than %d bytes came from the launcher", maxList)
		}
		if a.Piece.Last {
			return all, nil
		}
	}
}
