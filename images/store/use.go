package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// A Use is a use of an image: by a sandbox or a snapshot. It lasts until [User.Release], also after the end
// of the process. No removal takes an image in use.
type Use struct {
	By    string // the name of the sandbox or snapshot
	Image Digest
}

// A Held is an image in use, as open files.
type Held struct {
	Image  Image
	Config []byte
	Index  *os.File
	Layers []*os.File // the tars, the lowest first
}

// Close closes the files. The use goes on. A second call does nothing.
func (h *Held) Close() {
	descriptor.Close(h.Index)
	descriptor.Close(h.Layers...)
}

// Use notes that a sandbox or snapshot uses an image from now on, and opens the image. A second use by the
// same one changes nothing. The caller closes the Held, and calls [User.Release] at the end of the use.
func (u User) Use(ctx context.Context, name, by string) (*Held, error) {
	return u.use(ctx, name, by, uses.noteLocked)
}

// UseUntilBoot is [User.Use] for a sandbox. The use ends with this boot of the host, as the sandbox does. UseUntilBoot does
// not wait for the disk.
func (u User) UseUntilBoot(ctx context.Context, name, by string) (*Held, error) {
	return u.use(ctx, name, by, uses.noteUntilBootLocked)
}

func (u User) use(ctx context.Context, name, by string, note func(uses, Use) error) (*Held, error) {
	h, err := locked(ctx, u.store, func() (*Held, error) {
		if err := checkName(by); err != nil {
			return nil, err
		}
		h, err := u.openLocked(name)
		if err != nil {
			return nil, err
		}
		if err := note(u.uses(), Use{by, h.Image.ID}); err != nil {
			h.Close()
			return nil, err
		}
		return h, nil
	})
	return h, during("use image "+clip(name), err)
}

// Open opens an image without a use. A removal can take the image, but not the open files. The caller closes the Held.
func (u User) Open(ctx context.Context, name string) (*Held, error) {
	h, err := locked(ctx, u.store, func() (*Held, error) { return u.openLocked(name) })
	return h, during("open image "+clip(name), err)
}

// openLocked opens the image that a name, an id, or the beginning of an id means.
func (u User) openLocked(name string) (*Held, error) {
	image, err := u.findLocked(name)
	if err != nil {
		return nil, err
	}
	return u.store.openImageLocked(image)
}

// Files tells apart the files of an image and those of the same image that was pulled again, after damage or a
// removal, as long as one of the two is open or mounted.
func (h *Held) Files() (string, error) {
	hash := sha256.New()
	for _, f := range append([]*os.File{h.Index}, h.Layers...) {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return "", &os.PathError{Op: "stat", Path: f.Name(), Err: err}
		}
		fmt.Fprintf(hash, "%d:%d\n", st.Dev, st.Ino)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// openImageLocked opens the files of an image, and checks the index. It marks damaged content.
func (s *Store) openImageLocked(image Image) (*Held, error) {
	if image.Damaged != "" {
		return nil, &DamagedError{"image " + string(image.ID), image.Damaged}
	}
	raw, _, layers, err := s.readConfig(image.ID)
	if err != nil {
		return nil, err
	}
	tars, err := s.openLayers(layers)
	if err != nil {
		return nil, err
	}
	index, err := s.openContent(image.ID, indexName)
	if err != nil {
		descriptor.Close(tars...)
		return nil, err
	}
	h := &Held{Image: image, Config: raw, Index: index, Layers: tars}
	if err := checkIndex(index, tars); err != nil {
		h.Close()
		errs := []error{&DamagedError{"image " + string(image.ID), err.Error()}, markLocked(s.imageDir(image.ID))}
		if size := (*layerSizeError)(nil); errors.As(err, &size) {
			errs = append(errs, markLocked(s.layerDir(layers[size.layer])))
		}
		return nil, errors.Join(errs...)
	}
	return h, nil
}

// Uses returns all uses by the user's sandboxes and snapshots.
func (u User) Uses(ctx context.Context) ([]Use, error) {
	return locked(ctx, u.store, u.uses().allLocked)
}

// Release ends all uses by a sandbox or snapshot. It is no error if there are none.
func (u User) Release(ctx context.Context, by string) error {
	unlock, err := u.store.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	names, err := os.ReadDir(u.path("uses"))
	errs := []error{erase.IgnoreMissing(err)}
	for _, n := range names {
		if strings.HasPrefix(n.Name(), userPart(by)) {
			errs = append(errs, os.Remove(u.path("uses", n.Name())))
		}
	}
	return during("release the images of "+clip(by), errors.Join(errs...))
}

// uses are the uses of images by the sandboxes and snapshots of a user.
type uses struct{ user User }

func (u User) uses() uses { return uses{u} }

// path is the file of a use. Its name begins with a part that all uses by one sandbox have.
func (u uses) path(by string, image Digest) string {
	return u.user.path("uses", userPart(by)+image.hex()[:len(image.hex())/2])
}

func userPart(by string) string {
	hex := digestOf([]byte(by)).hex()
	return hex[:len(hex)/2]
}

// A bootUse is a use that ends with a boot of the host. In the record of another use, Boot is empty.
type bootUse struct {
	Use
	Boot string
}

func (u uses) noteLocked(use Use) error {
	return u.user.store.writeRecordLocked(u.path(use.By, use.Image), use)
}

func (u uses) noteUntilBootLocked(use Use) error {
	boot, err := process.BootID()
	if err != nil {
		return err
	}
	content, err := json.Marshal(bootUse{use, boot})
	if err != nil {
		return err
	}
	return linkLocked(u.path(use.By, use.Image), content)
}

// allLocked returns the uses, and removes those that have ended with an earlier boot: their sandboxes have no other
// trace, so that no removal of a sandbox could end the use.
func (u uses) allLocked() ([]Use, error) {
	records, err := readRecords[bootUse](u.user.path("uses"))
	if err != nil {
		return nil, err
	}
	boot, err := process.BootID()
	if err != nil {
		return nil, err
	}
	var all []Use
	for _, r := range records {
		if r.Boot == "" || r.Boot == boot {
			all = append(all, r.Use)
		} else if err := os.Remove(u.path(r.By, r.Image)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// byLocked are the sandboxes and snapshots that use an image.
func (u uses) byLocked(id Digest) ([]string, error) {
	all, err := u.allLocked()
	var names []string
	for _, use := range all {
		if use.Image == id {
			names = append(names, use.By)
		}
	}
	slices.Sort(names)
	return names, err
}

// ReleaseAll ends all uses by a sandbox or snapshot, of any user. It is no error if there are none.
func (s *Store) ReleaseAll(ctx context.Context, by string) error {
	users, err := locked(ctx, s, s.usersLocked)
	errs := []error{err}
	for _, u := range users {
		errs = append(errs, u.Release(ctx, by))
	}
	return errors.Join(errs...)
}
