package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/builder"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A NewImage is an image that [Pull.AddImage] adds.
type NewImage struct {
	Reference string // may be empty
	Digest    Digest // of the manifest; may be empty
	Config    []byte // its digest is the image's id
}

// AddImage adds an image whose layers the user has. If the user has the image already, it gets the
// reference.
func (p *Pull) AddImage(ctx context.Context, n NewImage) (Image, error) {
	image, err := p.addImage(ctx, n)
	return image, during("add image "+clip(n.Reference), err)
}

func (p *Pull) addImage(ctx context.Context, n NewImage) (image Image, err error) {
	if n.Reference != "" {
		if err := checkName(n.Reference); err != nil {
			return image, err
		}
	}
	if n.Digest != "" {
		if _, err := ParseDigest(string(n.Digest)); err != nil {
			return image, err
		}
	}
	s := p.user.store
	_, layers, err := s.parseConfig(n.Config)
	if err != nil {
		return image, err
	}
	id := digestOf(n.Config)
	done, err := p.user.addOnce(ctx, id)
	if err != nil {
		return image, err
	}
	defer done()
	tars, exists, err := p.open(ctx, id, layers)
	if err != nil {
		return image, err
	}
	defer descriptor.Close(tars...)
	var d *draft
	if !exists {
		if d, err = s.newDraft(ctx); err != nil {
			return image, err
		}
		defer func() { err = errors.Join(err, d.close()) }()
		if err := s.fillImage(ctx, d, n.Config, layers, tars); err != nil {
			return image, err
		}
	}
	return p.commitImage(ctx, d, id, layers, n)
}

// open opens the layers, and says whether the image is in the store.
func (p *Pull) open(ctx context.Context, id Digest, layers []Digest) (tars []*os.File, exists bool, err error) {
	unlock, err := p.user.store.lock(ctx)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	if err := p.user.checkLayersLocked(layers); err != nil {
		return nil, false, err
	}
	if tars, err = p.user.store.openLayers(layers); err != nil {
		return nil, false, err
	}
	exists, err = usable(p.user.store.imageDir(id), indexName)
	return tars, exists, err
}

func (u User) checkLayersLocked(layers []Digest) error {
	lacks, err := u.lacksLocked(layers)
	if err == nil && len(lacks) > 0 {
		err = fmt.Errorf("layer %s is missing; pull the image again", lacks[0])
	}
	return err
}

func (s *Store) openLayers(layers []Digest) (tars []*os.File, err error) {
	dir, err := s.openLayersDir()
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	for _, l := range layers {
		path := filepath.Join(l.hex(), tarName)
		fd, err := unix.Openat(dir, path, unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			descriptor.Close(tars...)
			return nil, &os.PathError{Op: "open", Path: s.path("layers", path), Err: err}
		}
		tars = append(tars, os.NewFile(uintptr(fd), s.path("layers", path)))
	}
	return tars, nil
}

// fillImage makes the files of an image in the draft.
func (s *Store) fillImage(ctx context.Context, d *draft, raw []byte, layers []Digest, tars []*os.File) (err error) {
	index, err := d.create(indexName)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, index.Close()) }()
	if err := s.makeIndex(ctx, tars, index); err != nil {
		return err
	}
	if err := errors.Join(d.write(configName, raw), d.write(layersName, listOf(layers))); err != nil {
		return err
	}
	return seal(index)
}

// makeIndex writes and checks the index of an image.
func (s *Store) makeIndex(ctx context.Context, tars []*os.File, index *os.File) error {
	if _, err := builder.Index(ctx, tars, index, s.limits.Index); err != nil {
		// The child tells its errors as text.
		var st unix.Statfs_t
		if unix.Fstatfs(int(index.Fd()), &st) == nil && (st.Bavail == 0 || st.Files > 0 && st.Ffree == 0) {
			err = explain(errors.Join(err, unix.ENOSPC))
		}
		return err
	}
	return checkIndex(index, tars)
}

// commitImage puts the image into the store, unless d is nil, and gives the user the rights and the name.
func (p *Pull) commitImage(ctx context.Context, d *draft, id Digest, layers []Digest, n NewImage) (image Image, err error) {
	s := p.user.store
	unlock, err := s.lock(ctx)
	if err != nil {
		return image, err
	}
	defer unlock()
	if err := p.user.checkLayersLocked(layers); err != nil {
		return image, err
	}
	is, err := usable(s.imageDir(id), indexName)
	if err != nil {
		return image, err
	}
	switch {
	case !is && d == nil:
		return image, errors.New("another process has removed it meanwhile; pull it again")
	case !is:
		if err := s.placeLocked(d, s.imageDir(id)); err != nil {
			return image, err
		}
	}
	var g grants
	if err := p.grantImageLocked(&g, id, layers, n); err != nil {
		return image, errors.Join(err, g.undoLocked(s))
	}
	return p.user.findLocked(string(id))
}

// grantImageLocked gives the user the rights to an image and its layers, and the name.
func (p *Pull) grantImageLocked(g *grants, id Digest, layers []Digest, n NewImage) error {
	for _, l := range layers { // root has had no rights of its own until now
		if err := g.addLocked(p.user, "layers", l); err != nil {
			return err
		}
	}
	if err := g.addLocked(p.user, "images", id); err != nil {
		return err
	}
	if n.Reference == "" {
		return nil
	}
	path := p.user.referencePath(n.Reference)
	if err := checkRoom(path, p.user.store.limits.References); err != nil {
		return err
	}
	// Another image with the name loses the name.
	return p.user.store.writeRecordLocked(path, Reference{n.Reference, n.Digest, id})
}
