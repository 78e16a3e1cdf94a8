package launcher

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
)

// A HeldTree is a tree with open layers. Its lists have no bound that memory has, so that
// they are read only to be passed on: its Stamps, and the Marks of its Layers, are nil.
type HeldTree struct {
	launch.Tree
	// stamps is the file with the list of stamps; nil: there is none.
	stamps *os.File
	// plain are the layers to list the marks of; empty for a client that can read them.
	plain []*os.File
}

// Stamped tells whether the tree has a list of stamps, and Listed whether its layers have
// lists of marks.
func (t *HeldTree) Stamped() bool { return t.stamps != nil }

// Listed is described at Stamped.
func (t *HeldTree) Listed() bool { return len(t.plain) > 0 }

// WriteStamps writes the list of stamps, as [launch.StampReader] reads it.
func (t *HeldTree) WriteStamps(w io.Writer) error {
	_, err := io.Copy(w, io.NewSectionReader(t.stamps, 0, maxStamps))
	return err
}

// maxMarks bounds the list of a layer's marks, in bytes.
const maxMarks = 32 << 20

// WriteMarks writes the list of marks of a layer, as [launch.DecodeMarks] reads it.
func (t *HeldTree) WriteMarks(ctx context.Context, number int, w io.Writer) error {
	out := bufio.NewWriterSize(w, launch.PieceSize)
	var line []byte
	size := 0
	err := layer.EachMark(ctx, t.plain[number], func(path string, m layer.Mark) error {
		line = launch.AppendMark(line[:0], path, m)
		if size += len(line); size > maxMarks {
			return fmt.Errorf("the list of the changed directories below %s takes more than %d bytes; look at them as root", t.Path, maxMarks)
		}
		_, err := out.Write(line)
		return err
	})
	return errors.Join(err, out.Flush())
}

// Close lets go of the tree. It may be called again.
func (t *HeldTree) Close() error {
	err := t.Tree.Close()
	for i, f := range t.plain {
		err = errors.Join(err, closeOther(f, t.Layers[i].Dir))
	}
	if t.stamps != nil {
		err = errors.Join(err, t.stamps.Close())
	}
	t.Layers, t.Host, t.plain, t.stamps = nil, nil, nil, nil
	return err
}

// closeOther closes a file, unless it is the other one.
func closeOther(f, other *os.File) error {
	if f == other {
		return nil
	}
	return f.Close()
}

func closeAllTrees(trees []HeldTree) (err error) {
	for i := range trees {
		err = errors.Join(err, trees[i].Close())
	}
	return err
}
