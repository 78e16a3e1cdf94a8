package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
)

// A User is the view of one user on a store.
type User struct {
	store *Store
	uid   uint32
}

// For returns the view of a user.
func (s *Store) For(uid uint32) User { return User{s, uid} }

// path is a path in the user's directory.
func (u User) path(names ...string) string {
	return u.store.path(append([]string{"users", strconv.FormatUint(uint64(u.uid), 10)}, names...)...)
}

// prepareLocked makes the directories of the user. Some backups leave out empty directories.
func (u User) prepareLocked() error {
	made := false
	for _, part := range []string{"layers", "images", "references", "uses", "removing", "adding"} {
		is, err := exists(u.path(part))
		if err == nil && !is {
			made, err = true, os.MkdirAll(u.path(part), 0o700)
		}
		if err != nil {
			return explain(err)
		}
	}
	if !made {
		return nil
	}
	return errors.Join(syncDir(u.store.path("users")), syncDir(u.path()))
}

// hasLocked says whether the user has a right: to one of the "layers" or "images".
func (u User) hasLocked(kind string, d Digest) (bool, error) { return exists(u.path(kind, d.hex())) }

// hasLayerLocked says whether the user can use the layer, and the layer is in the store and not known to be
// damaged.
func (u User) hasLayerLocked(d Digest) (bool, error) {
	if u.uid != 0 {
		if has, err := u.hasLocked("layers", d); !has {
			return false, err
		}
	}
	return usable(u.store.layerDir(d), tarName)
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	return err == nil, erase.IgnoreMissing(err)
}

// digestsLocked are the digests that name the entries of a directory.
func digestsLocked(dir string) ([]Digest, error) {
	entries, err := os.ReadDir(dir)
	var all []Digest
	for _, e := range entries {
		if isDigestName(e.Name()) {
			all = append(all, fromHex(e.Name()))
		}
	}
	return all, erase.IgnoreMissing(err)
}

// usersLocked are all users of the store.
func (s *Store) usersLocked() ([]User, error) {
	entries, err := os.ReadDir(s.path("users"))
	var all []User
	for _, e := range entries {
		if uid, err := strconv.ParseUint(e.Name(), 10, 32); err == nil && e.IsDir() {
			all = append(all, s.For(uint32(uid)))
		}
	}
	return all, err
}

// repairLocked removes the remains of killed processes: drafts, locks, unfinished removals, and content
// without a user. An error of a user's removal is an error for that user only.
func (s *Store) repairLocked(of ...User) error {
	users, err := s.usersLocked()
	errs := []error{err}
	for _, u := range users {
		err := u.prepareLocked()
		if err == nil {
			err = u.finishAllLocked()
		}
		if slices.Contains(of, u) {
			errs = append(errs, err)
		}
	}
	var r rest
	errs = append(errs, s.dropOrphansLocked(&r), r.erase(), clearLocked(s.path("drafts")))
	return during("repair the image store", errors.Join(errs...))
}

// finishAllLocked finishes the removals of the user, and removes the locks of ended processes.
func (u User) finishAllLocked() error {
	removing, err := digestsLocked(u.path("removing"))
	errs := []error{err}
	for _, id := range removing {
		errs = append(errs, (&removal{user: u}).finishLocked(id))
	}
	if err := clearLocked(u.path("adding")); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// dropOrphansLocked takes images and layers without a user out of the store.
func (s *Store) dropOrphansLocked(r *rest) error {
	users, err := s.usersLocked()
	if err != nil {
		return err
	}
	var errs []error
	for _, kind := range []string{"images", "layers"} {
		owned := map[Digest]bool{}
		for _, u := range users {
			own, err := u.rightsLocked(kind)
			if err != nil {
				return err // a right that is not seen must not cost its content
			}
			for _, d := range own {
				owned[d] = true
			}
		}
		all, err := digestsLocked(s.path(kind))
		errs = append(errs, err)
		for _, d := range all {
			if !owned[d] {
				errs = append(errs, s.discardLocked(r, s.path(kind, d.hex())))
			}
		}
	}
	return errors.Join(errs...)
}

// rightsLocked are the layers or images that the user has a right to. An unfinished removal needs the image.
func (u User) rightsLocked(kind string) ([]Digest, error) {
	own, err := digestsLocked(u.path(kind))
	if err != nil || kind != "images" {
		return own, err
	}
	removing, err := digestsLocked(u.path("removing"))
	return append(own, removing...), err
}

// A Pull adds layers and images for a user. As long as it is open, no removal takes a layer of the user that
// no image needs yet. The end of the process closes it.
type Pull struct {
	user User
	held *os.File
}

// Pull begins to add. The caller closes the Pull.
func (u User) Pull(ctx context.Context) (*Pull, error) {
	unlock, err := u.store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := errors.Join(u.store.repairLocked(u), u.prepareLocked()); err != nil {
		return nil, err
	}
	held, err := lockFile(ctx, u.path("pulls"), descriptor.Shared)
	if err != nil {
		return nil, err
	}
	return &Pull{u, held}, nil
}

// Close ends the Pull. A second call does nothing.
func (p *Pull) Close() { p.held.Close() }

// hasPullLocked says whether the user has a pull. No pull begins as long as the store is locked.
func (u User) hasPullLocked() (bool, error) {
	held, err := os.OpenFile(u.path("pulls"), unix.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, erase.IgnoreMissing(err)
	}
	defer held.Close()
	got, err := descriptor.TryLock(held)
	return !got, err
}

// addOnce waits until no other process and goroutine adds the same content for the user. Users never wait
// for each other: a wait would tell that another user adds the same layer.
func (u User) addOnce(ctx context.Context, d Digest) (done func(), err error) {
	path := u.path("adding", d.hex())
	for {
		f, err := lockFile(ctx, path, descriptor.Exclusive)
		if err != nil {
			return nil, err
		}
		hasName, err := descriptor.HasName(f)
		if hasName {
			return func() { os.Remove(path); f.Close() }, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}
