package overlay

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

// DraftName is the name of something that does not have its own name yet. It names the
// process that makes it.
func DraftName(owner process.ID) string {
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

// DiscardIn moves an entry of a store into the store's trash, and empties the trash in
// the background. The next call goes on with a trash that a closed launcher has left.
func (k *Keeper) DiscardIn(store *os.File, name string) error {
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
	k.sweeper.Start(func(ctx context.Context) {
		defer trash.Close()
		_ = erase.Contents(ctx, trash) // the next call goes on
	})
	return nil
}

// forgetApplied removes the stamps of discarded layers, for trees that keep their age.
func (f *Files) forgetApplied(r record.Record) error {
	for i, t := range r.Trees {
		if !r.BegunWith(t) {
			continue
		}
		if err := os.Remove(f.StampsPath(i, t)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// imageIsKept tells whether the sandbox's image has other names than its own.
func (f *Files) imageIsKept() (bool, error) {
	image := f.Current().Image
	if image == "" {
		return false, nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(f.ImagePath(image), &st); err != nil {
		return false, fmt.Errorf("image of %s: %w", f.ID, err)
	}
	return st.Nlink > 1, nil
}

func (k *Keeper) discardLayers(store *os.File, numbers []int) (err error) {
	for _, n := range numbers {
		err = errors.Join(err, k.DiscardIn(store, "layer/"+strconv.Itoa(n)))
	}
	return err
}
