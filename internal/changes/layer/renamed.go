package layer

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A RenamedDir is a directory of a layer that was renamed inside. The kernel does not copy the
// directory's content: the layer notes the path at which the layers below have it.
type RenamedDir struct {
	Path string
	// Layer is the layer that has the note, 0 for the uppermost.
	Layer int
	// Whole says that MakeWhole has copied all content to the layer.
	Whole bool
	// Opaque says that the layer hides the layers below from the kernel, too. The kernel notices that
	// once it has forgotten the directory.
	Opaque bool
	// Untied says that the kernel has forgotten the directory since it is opaque: see NoteUntied.
	Untied bool
}

// ErrRenamed says that the content of a renamed directory lies in the layers below, at another
// path. MakeWhole brings the content to the layer.
var ErrRenamed = errors.New("was renamed in the sandbox just now; try again")

// FindRenamed lists the renamed directories of an overlay's layers, each before those below it. The layers
// come with the uppermost first. Directories too deep for Changes are left out: if there are any, the list comes
// with an [ErrTooDeep].
func FindRenamed(ctx context.Context, layers ...*os.File) (all []RenamedDir, err error) {
	err = find(ctx, &Stack{renamed: func(r RenamedDir) { all = append(all, r) }}, layers, nil)
	return all, err
}

// FindBack lists the directories that were renamed, and renamed back to their first places, and that were changed after
// a time. The layers below still have the content of such a directory. A reader of the layers can have found the
// directory at its other place, or no directory at all. Errors are those of FindRenamed.
func FindBack(ctx context.Context, since time.Time, layers ...*os.File) (paths []string, err error) {
	s := &Stack{renamed: func(RenamedDir) {}, back: func(path string, ctime int64) {
		if ctime > since.UnixNano() {
			paths = append(paths, path)
		}
	}}
	err = find(ctx, s, layers, nil)
	return paths, err
}

// find walks through layers for the functions of a stack, and for mark, if it is not nil. mark gets each directory,
// and its error ends the walk. The error ErrTooDeep does not end the walk.
func find(ctx context.Context, s *Stack, layers []*os.File, mark func(path string, m Mark) error) (err error) {
	for _, dir := range layers {
		s.Layers = append(s.Layers, Layer{Dir: dir})
	}
	var tooDeep error
	w := walker{
		Stack: s,
		o:     Options{Names: true},
		mark: func(path string, m Mark) {
			if mark != nil && err == nil {
				err = mark(path, m)
			}
		},
		yield: func(_ spec.Change, failed error) bool {
			switch {
			case err != nil:
			case ctx.Err() != nil:
				err = ctx.Err()
			case errors.Is(failed, ErrTooDeep):
				tooDeep = failed
			default:
				err = failed
			}
			return err == nil
		},
	}
	w.walk()
	return cmp.Or(err, tooDeep)
}

// settle decides about a directory that has a redirect. The directory that it is in has the
// level in, and the path counts from the top.
//
// The directory of a finished MakeWhole hides the layers below, as an opaque one does. A directory that was
// renamed back to its first place is as it was.
func (s *Stack) settle(l, in *level, name, path string) error {
	switch {
	case l.redirect == "":
		return nil
	case s.renamed == nil && l.Opaque:
		return nil
	case !l.Opaque && !in.hides && (l.redirect == "/"+path || l.redirect == name):
		return s.settleBack(l, path)
	}
	if s.renamed != nil {
		s.renamed(RenamedDir{path, int(l.layer), l.whole || l.Opaque, l.Opaque, l.Opaque && !l.whole})
	} else if !l.whole {
		return ErrRenamed
	}
	l.Opaque = l.Opaque || l.whole
	return nil
}

// settleBack is settle for a directory at its first place.
func (s *Stack) settleBack(l *level, path string) error {
	if s.back == nil || l.whole {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.fd, &st); err != nil {
		return err
	}
	s.back(path, st.Ctim.Nano())
	return nil
}
