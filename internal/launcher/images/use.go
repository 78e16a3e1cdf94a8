package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A Root is an image that a sandbox uses.
type Root struct {
	ID string
	// Files tells the files apart from those of the same image that is pulled again.
	Files  string
	Config []byte
	// Tree is the root directory of a detached mount of the image, which the caller must close. Before Linux 6.15 it
	// is the only one of this mount.
	Tree *os.File
}

// Use notes that a sandbox of the user uses an image from now on, and mounts the image. The caller must call
// Release at the end of the use.
func (k *Keeper) Use(ctx context.Context, uid uint32, name, by string) (*Root, error) {
	var root *Root
	err := k.withNamed(ctx, uid, name, func(u store.User, name string) error {
		held, err := u.UseUntilBoot(ctx, name, by)
		if err != nil {
			return err
		}
		defer held.Close()
		if root, err = k.root(held); err != nil {
			return errors.Join(err, u.Release(ctx, by))
		}
		return nil
	})
	return root, err
}

// Open mounts an image without a use, by its id: a removal can take the image at any time, but not its mount.
func (k *Keeper) Open(ctx context.Context, uid uint32, id string) (root *Root, err error) {
	err = k.withImage(ctx, uid, id, func(held *store.Held) (err error) {
		root, err = k.root(held)
		return err
	})
	return root, err
}

// withImage calls f with the files of the user's image with this id.
func (k *Keeper) withImage(ctx context.Context, uid uint32, id string, f func(*store.Held) error) error {
	return k.withUser(ctx, uid, func(u store.User) error {
		held, err := u.Open(ctx, id)
		if err != nil {
			return err
		}
		defer held.Close()
		return f(held)
	})
}

func (k *Keeper) root(held *store.Held) (*Root, error) {
	files, err := held.Files()
	if err != nil {
		return nil, err
	}
	tree, err := k.mounts.tree(held, files)
	if err != nil {
		return nil, err
	}
	return &Root{string(held.Image.ID), files, held.Config, tree}, nil
}

// ErrPulledAgain says that the image of an id has other files now.
var ErrPulledAgain = errors.New("was pulled again")

// Check returns an error if the user has no image of this id any more, or [ErrPulledAgain] if it has other files.
func (k *Keeper) Check(ctx context.Context, uid uint32, id, files string) error {
	return k.withImage(ctx, uid, id, func(held *store.Held) error {
		now, err := held.Files()
		if err == nil && now != files {
			err = fmt.Errorf("image %s %w", id, ErrPulledAgain)
		}
		return err
	})
}

// Hold notes that a snapshot of the user uses an image, by its id. The caller must call Release at the end of the use.
func (k *Keeper) Hold(ctx context.Context, uid uint32, id, by string) error {
	return k.withUser(ctx, uid, func(u store.User) error {
		held, err := u.Use(ctx, id, by)
		if err == nil {
			held.Close()
		}
		return err
	})
}

// Release ends all uses by a sandbox, by any user. It is no error if there are none.
func (k *Keeper) Release(ctx context.Context, by string) error {
	if _, err := os.Lstat(k.dir); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil // no user has ever had an image
	}
	s, err := k.open(ctx)
	if err != nil {
		return err
	}
	return conditionError(s.ReleaseAll(ctx, by))
}

// mountTime is how long a mount stays without a use. The sandboxes of an image that begin meanwhile share its page
// cache.
const mountTime = time.Minute

// mounts are the mounts of images that were used lately.
type mounts struct {
	mu   sync.Mutex
	made map[string]*mountedImage // by the files of the image
}

type mountedImage struct {
	tree *os.File
	drop *time.Timer
}

// tree returns a descriptor of a mount of the image, which the caller must close.
func (m *mounts) tree(h *store.Held, files string) (*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.made[files]; have != nil && have.drop.Reset(mountTime) {
		return duplicate(have.tree)
	}
	tree, err := h.Mount()
	if err != nil || !isShareable(tree) {
		return tree, err
	}
	if m.made == nil {
		m.made = map[string]*mountedImage{}
	}
	made := &mountedImage{tree: tree}
	made.drop = time.AfterFunc(mountTime, func() { m.dropOne(files, made) })
	m.made[files] = made
	return duplicate(tree)
}

// isShareable says whether the roots of several sandboxes can be made of a detached mount: since Linux 6.15 the kernel
// copies such mounts.
func isShareable(tree *os.File) bool {
	fd, err := unix.OpenTree(int(tree.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// dropOne closes a mount. Another one may have its place already.
func (m *mounts) dropOne(files string, unused *mountedImage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.made[files] == unused {
		delete(m.made, files)
	}
	unused.tree.Close()
}

// drop closes all mounts.
func (m *mounts) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for files, made := range m.made {
		made.drop.Stop()
		made.tree.Close()
		delete(m.made, files)
	}
}

func duplicate(f *os.File) (*os.File, error) {
	fd, err := descriptor.Duplicate(f)
	if err != nil {
		return nil, fmt.Errorf("mount of an image: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// SandboxUse names the use of an image by a sandbox. Several state roots can share a store: root tells them apart.
func SandboxUse(id, root string) string { return id + "@" + root }

// SnapshotUse names a use of an image by a snapshot. The unique text tells uses by snapshots of one name apart.
func SnapshotUse(name, unique string) string { return snapshotUse + name + ":" + unique }

const snapshotUse = "snapshot:"

// shownUses are the names of uses as the user knows them.
func shownUses(uses []string) []string {
	var shown []string
	for _, use := range uses {
		if rest, ok := strings.CutPrefix(use, snapshotUse); ok {
			name, _, _ := strings.Cut(rest, ":")
			shown = append(shown, "snapshot "+name)
			continue
		}
		id, _, _ := strings.Cut(use, "@")
		shown = append(shown, "sandbox "+id)
	}
	return shown
}
