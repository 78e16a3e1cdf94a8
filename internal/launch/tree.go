package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
)

// A Tree is a directory of the host that a sandbox has an overlay of, with what
// the sandbox has written there.
type Tree struct {
	// Path of the tree, on the host and in the sandbox.
	Path string
	// Device and Inode of the directory on the host that was overlaid; 0 where they are
	// not known.
	Device, Inode uint64
	// Layers are the upper one first, then those below it that are frozen, without
	// the host's tree.
	Layers []TreeLayer
	// Since is when the tree was overlaid: what has changed on the host later, the
	// sandbox has not certainly seen.
	Since time.Time
	// Owner is the owner of the host's tree: whose the files of the sandbox's user
	// are there. With OnDisk there is no such one: an id on the host is the same id
	// inside.
	Owner  Owner
	OnDisk bool
	// User is as whom the files of the sandbox's user show in the layers. Id i of
	// the inside, of any other, shows as Base+i.
	User Owner
	Base int64
	// Stamps tell how Applied changes have left paths of the host's tree: that is no
	// change of others.
	Stamps map[string]layer.Stamp
	// Partial says that a transaction had joined only in part when the sandbox stopped.
	Partial bool
	// Host is the overlaid directory if Path leads to another directory, or to none.
	// Nil: Path leads to the directory, or nobody can find the directory any more.
	Host *os.File
}

// Owner is a user and a group.
type Owner struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// A TreeLayer is one layer of a tree.
type TreeLayer struct {
	// Dir is a detached mount of the layer: read-only, nosuid, nodev and noexec.
	// Before Linux 6.15 it is the directory itself.
	Dir *os.File
	// Marks are those of the layer's directories. Nil for clients that may read them
	// from extended attributes.
	Marks map[string]layer.Mark
}

// Close lets go of the layers.
func (t *Tree) Close() error {
	var errs []error
	for _, l := range t.Layers {
		errs = append(errs, l.Dir.Close())
	}
	if t.Host != nil {
		errs = append(errs, t.Host.Close())
	}
	return errors.Join(errs...)
}

// WireTree is a Tree on the wire. Beside it come, for each layer, its directory
// and, if Listed says so, the list of marks; then, if Stamped says so, the stamps;
// and last, if Found says so, the Host directory.
type WireTree struct {
	Path    string    `json:"path"`
	Device  uint64    `json:"device,omitempty"`
	Inode   uint64    `json:"inode,omitempty"`
	Since   time.Time `json:"since"`
	Owner   Owner     `json:"owner"`
	OnDisk  bool      `json:"on_disk,omitempty"`
	User    Owner     `json:"user"`
	Base    int64     `json:"base"`
	Listed  []bool    `json:"listed"`
	Stamped bool      `json:"stamped,omitempty"`
	Partial bool      `json:"partial,omitempty"`
	Found   bool      `json:"found,omitempty"`
}

// Stamp is a layer.Stamp and its path, which may be any bytes.
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

// maxList bounds a list of paths, in bytes.
const maxList = 64 << 20

// EncodeMarks is a list of marks as it comes beside a WireTree.
func EncodeMarks(marks map[string]layer.Mark) []byte {
	var b []byte
	for _, p := range slices.Sorted(maps.Keys(marks)) {
		b = appendPair(b, p, layer.EncodeMark(marks[p]))
	}
	return b
}

// EncodeStamps is a list of stamps as it comes beside a WireTree.
func EncodeStamps(stamps map[string]layer.Stamp) []byte {
	var b []byte
	for _, p := range slices.Sorted(maps.Keys(stamps)) {
		s := stamps[p]
		word := strconv.FormatInt(s.CTime, 10)
		if s.Source != 0 {
			word += sourceSeparator + strconv.FormatInt(s.Source, 10)
		}
		if s.Inode != 0 {
			word += inodeSeparator + strconv.FormatUint(s.Inode, 10)
		}
		if s.Touched {
			word += touchedEnd
		}
		b = appendPair(b, p, word)
	}
	return b
}

// A stamp is a time. A regular file also has the time of its source, and a directory its
// inode. Lists of earlier versions may have the time alone.
const (
	sourceSeparator = ";"
	inodeSeparator  = ","
	touchedEnd      = "t"
)

// DecodeStamps is the inverse of EncodeStamps.
func DecodeStamps(b []byte) (map[string]layer.Stamp, error) {
	stamps := map[string]layer.Stamp{}
	for path, word := range pairs(b) {
		var s layer.Stamp
		var err error
		text, touched := strings.CutSuffix(word, touchedEnd)
		text, inode, hasInode := strings.Cut(text, inodeSeparator)
		ctime, source, hasSource := strings.Cut(text, sourceSeparator)
		s.CTime, err = strconv.ParseInt(ctime, 10, 64)
		if err == nil && hasSource {
			s.Source, err = strconv.ParseInt(source, 10, 64)
		}
		if err == nil && hasInode {
			s.Inode, err = strconv.ParseUint(inode, 10, 64)
		}
		if err != nil {
			return nil, fmt.Errorf("stamps: %q is no stamp", word)
		}
		s.Touched = touched
		stamps[path] = s
	}
	return stamps, nil
}

func decodeMarks(b []byte) (map[string]layer.Mark, error) {
	marks := map[string]layer.Mark{}
	for path, word := range pairs(b) {
		m, err := layer.DecodeMark(word)
		if err != nil {
			return nil, err
		}
		marks[path] = m
	}
	return marks, nil
}

// appendPair adds a path and a word, neither of which has a NUL byte.
func appendPair(b []byte, path, word string) []byte {
	b = append(append(b, path...), 0)
	return append(append(b, word...), 0)
}

// pairs are the paths and words of a list.
func pairs(b []byte) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for len(b) > 0 {
			path, rest, _ := bytes.Cut(b, []byte{0})
			word, rest, _ := bytes.Cut(rest, []byte{0})
			b = rest
			if !yield(string(path), string(word)) {
				return
			}
		}
	}
}

// Layers are the trees that a sandbox has overlays of. The caller closes them.
//
// Errors: ErrNotFound, ErrNotRunning.
func (c *Client) Layers(ctx context.Context, id string) (_ []Tree, err error) {
	ch, err := c.open(ctx, &Request{Op: OpLayers, ID: id}, nil, MaxFiles)
	if err != nil {
		return nil, err
	}
	defer func() {
		ch.Close()
		ch.Discard()
	}()
	trees := []Tree{}
	defer func() {
		if err != nil {
			for _, t := range trees {
				_ = t.Close() // the error is what counts
			}
		}
	}()
	for {
		a, files, err := c.receive(ctx, ch)
		if err != nil {
			return nil, err
		}
		if a.Tree == nil {
			closeFiles(files)
			return trees, nil
		}
		tree, err := a.Tree.plain(files)
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		trees = append(trees, tree)
	}
}

// plain is the tree, with the files that came beside it. On an error they stay
// the caller's.
func (w *WireTree) plain(files []*os.File) (Tree, error) {
	t := Tree{Path: w.Path, Device: w.Device, Inode: w.Inode, Since: w.Since, Owner: w.Owner, OnDisk: w.OnDisk, User: w.User, Base: w.Base, Partial: w.Partial}
	want := len(w.Listed)
	for _, listed := range append(slices.Clone(w.Listed), w.Stamped, w.Found) {
		if listed {
			want++
		}
	}
	if len(files) != want {
		return t, errAnswer
	}
	next := func() *os.File {
		f := files[0]
		files = files[1:]
		return f
	}
	var lists []*os.File
	defer func() { closeFiles(lists) }()
	for _, listed := range w.Listed {
		l := TreeLayer{Dir: next()}
		if listed {
			list := next()
			b, err := readList(list)
			if err != nil {
				return t, err
			}
			if l.Marks, err = decodeMarks(b); err != nil {
				return t, err
			}
			lists = append(lists, list)
		}
		t.Layers = append(t.Layers, l)
	}
	if w.Stamped {
		list := next()
		b, err := readList(list)
		if err != nil {
			return t, err
		}
		if t.Stamps, err = DecodeStamps(b); err != nil {
			return t, err
		}
		lists = append(lists, list)
	}
	if w.Found {
		t.Host = next()
	}
	return t, nil
}

// readList reads a file that came beside a tree, from its beginning.
func readList(f *os.File) ([]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxList+1))
	if err == nil && len(b) > maxList {
		err = fmt.Errorf("a list of more than %d bytes came from the launcher", maxList)
	}
	return b, err
}

const (
	// stampsAtOnce is how many bytes of paths go with one call. A frame has them in
	// base 64, each with a time and an inode, and both sides have several copies of it.
	stampsAtOnce = MaxFrame / 16
	// stampSize is more than a stamp takes there beside its path.
	stampSize = 100
)

// Applied tells a sandbox how changes of a tree were applied on the host. A zero
// stamp is of a path at which there is nothing any more.
//
// Errors: ErrNotFound, ErrNotRunning, *ConfigError for a tree that it has not.
func (c *Client) Applied(ctx context.Context, id, tree string, stamps map[string]layer.Stamp) error {
	var some []Stamp
	size := 0
	send := func() error {
		_, err := c.call(ctx, &Request{Op: OpApplied, ID: id, Tree: tree, Stamps: some})
		some, size = some[:0], 0
		return err
	}
	for _, p := range slices.Sorted(maps.Keys(stamps)) {
		if size += len(p) + stampSize; size > stampsAtOnce {
			if err := send(); err != nil {
				return err
			}
			size = len(p) + stampSize
		}
		some = append(some, Stamp{[]byte(p), stamps[p].CTime, stamps[p].Source, stamps[p].Inode, stamps[p].Touched})
	}
	if len(some) == 0 {
		return nil
	}
	return send()
}

// Verify asks whether a sandbox's files can be trusted. With sync it brings to disk
// what was written there before: without an error all that was read before the call is
// as it was written. Else it asks for an error that is known already.
//
// Errors: ErrDamaged, ErrNotFound, ErrNotRunning.
func (c *Client) Verify(ctx context.Context, id string, sync bool) error {
	_, err := c.call(ctx, &Request{Op: OpVerify, ID: id, Sync: sync})
	return err
}
