package launcher

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// draftName is of what is made under another name than it is to have, and says who
// makes it.
func draftName(owner process.ID) string {
	return fmt.Sprintf("new-%d-%d-%s-%s", owner.Pid, owner.Start, owner.Namespace, rand.Text())
}

// isLeftDraft says that a name is of such a thing, and its maker has ended.
func isLeftDraft(name string) bool {
	parts := strings.Split(name, "-")
	if len(parts) != 5 || parts[0] != "new" {
		return false
	}
	owner, err := process.Parse(strings.Join(parts[1:4], " "))
	return err == nil && !owner.Lives()
}

// discardIn moves an entry of a store into the store's trash, and empties the trash in
// the background. The next call goes on with a trash that a closed launcher has left.
func (l *Launcher) discardIn(store *os.File, name string) error {
	trash, err := makeDir(store, "trash")
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		err = unix.Renameat2(int(store.Fd()), name, int(trash.Fd()), strconv.Itoa(i), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if err != nil {
		trash.Close()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("discard %s of the store: %w", name, err)
	}
	l.sweeper.Start(func(ctx context.Context) {
		defer trash.Close()
		_ = erase.Contents(ctx, trash) // the next call goes on
	})
	return nil
}

// Discard has the sandbox's overlays show the host's directories again, or what a
// fork has begun with: what was written to them is thrown away.
//
// Errors: [launch.ErrBusy] where something in the sandbox has files open there or its
// directory, and those of Pause.
func (s *Sandbox) Discard(ctx context.Context) error {
	v := s.live
	return v.alone(ctx, func() error {
		kept, err := v.imageIsKept() // by snapshots or forks, with the layers that they froze
		if err != nil {
			return err
		}
		since, err := record.Settled(ctx)
		if err != nil {
			return err
		}
		trees := func(p record.Place) bool { return p.Tree != nil || p.Same != "" }
		return v.switchLayers(ctx, true, "", trees, func(r *record.Record, p record.Place, n int) {
			t := r.TreeAt(p.Path)
			old := t.Layers[:1]
			if !kept {
				old = t.Layers
			}
			r.Switch.Old = append(r.Switch.Old, old...)
			t.Layers = []int{n}
			if !r.BegunWith(*t) {
				t.Since = since
			}
		})
	})
}

// forgetApplied removes the stamps of what is thrown away, where the tree does not
// become another by its age.
func (v *live) forgetApplied(r record.Record) error {
	for i, t := range r.Trees {
		if !r.BegunWith(t) {
			continue
		}
		if err := os.Remove(v.stamps(i, t)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// imageIsKept tells whether the sandbox's image has other names than its own.
func (v *live) imageIsKept() (bool, error) {
	image := v.Current().Image
	if image == "" {
		return false, nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(v.launcher.ImagePath(image), &st); err != nil {
		return false, fmt.Errorf("image of %s: %w", v.ID, err)
	}
	return st.Nlink > 1, nil
}
