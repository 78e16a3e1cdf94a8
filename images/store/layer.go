package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/builder"
	"github.com/sandbox-runtime/sandbox-runtime/images/inflate"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// tarName is the name of the tar in the directory of a layer.
const tarName = "tar"

// Lacks returns those of the layers that [Pull.AddLayer] has to add for the user.
func (p *Pull) Lacks(ctx context.Context, diffIDs []Digest) ([]Digest, error) {
	unlock, err := p.user.store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	lacks, err := p.user.lacksLocked(diffIDs)
	if err != nil || p.user.uid != 0 {
		return lacks, err
	}
	// Root can use the layers of other users. Without a right of root, a removal by such a user would end this pull.
	var g grants
	for _, d := range diffIDs {
		if slices.Contains(lacks, d) {
			continue
		}
		if err := g.addLocked(p.user, "layers", d); err != nil {
			return nil, errors.Join(err, g.undoLocked(p.user.store))
		}
	}
	return lacks, nil
}

func (u User) lacksLocked(diffIDs []Digest) (lacks []Digest, err error) {
	for _, d := range diffIDs {
		has, err := u.hasLayerLocked(d)
		if err != nil {
			return nil, err
		}
		if !has {
			lacks = append(lacks, d)
		}
	}
	return lacks, nil
}

// AddLayer adds a layer for the user. The content is the tar or the compressed tar, in a pipe or a regular
// file that is read from its offset. AddLayer does not read the content if the user has the layer already,
// also because another process has added the layer meanwhile. It reads all of the content if only other
// users have the layer: the user must prove to have the layer.
func (p *Pull) AddLayer(ctx context.Context, diffID Digest, content *os.File) (err error) {
	defer func() { err = during("add layer "+clip(string(diffID)), err) }()
	if _, err := ParseDigest(string(diffID)); err != nil {
		return err
	}
	if err := checkContent(content); err != nil {
		return err
	}
	done, err := p.user.addOnce(ctx, diffID)
	if err != nil {
		return err
	}
	defer done()
	if lacks, err := p.Lacks(ctx, []Digest{diffID}); err != nil || len(lacks) == 0 {
		return err
	}
	d, err := p.user.store.newDraft(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := p.user.store.fill(ctx, d, diffID, content); err != nil {
		return err
	}
	return p.commitLayer(ctx, d, diffID)
}

// checkContent refuses files that have no content, or that do more than to give it.
func checkContent(f *os.File) error {
	var st unix.Stat_t
	if err := descriptor.Use(f, func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	// Descriptors such as those of eventfd(2) have no type, and package os calls them regular files.
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFIFO {
		return fmt.Errorf("the content is of type %#o; use a pipe or a regular file", kind)
	}
	return nil
}

// fill writes the tar of the layer into the draft. The child only inflates: this process hashes and writes,
// and so nothing depends on the child.
func (s *Store) fill(ctx context.Context, d *draft, diffID Digest, content *os.File) (err error) {
	tar, err := d.create(tarName)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tar.Close()) }()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	// A larger pipe needs fewer switches between the two processes.
	_, _ = unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, copiedAtOnce)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var inflated error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer w.Close()
		inflated = builder.Inflate(ctx, content, w, s.limits.LayerBytes+1) // receive notices the last byte
	}()
	got, err := s.receive(tar, r)
	r.Close()
	cancel(err) // for a failed write; else the child has ended
	<-done
	if err := cmp.Or(err, inflated); err != nil {
		return err
	}
	if got != diffID {
		return fmt.Errorf("the content is another layer, %s; pull the image again", got)
	}
	return seal(tar)
}

// copiedAtOnce is the size of the buffer of a copy.
const copiedAtOnce = 1 << 20

// receive writes a tar to a file, and returns the digest.
func (s *Store) receive(tar *os.File, r io.Reader) (Digest, error) {
	var file io.Writer = tar
	if s.limits.Spare {
		var err error
		if file, err = inflate.Sparing(tar); err != nil {
			return "", err
		}
	}
	h := sha256.New()
	// Not ReadFrom of the file, which would not pass the bytes through this process.
	to := struct{ io.Writer }{io.MultiWriter(file, h)}
	n, err := io.CopyBuffer(to, io.LimitReader(r, s.limits.LayerBytes+1), make([]byte, copiedAtOnce))
	if err != nil {
		return "", explain(err)
	}
	if n > s.limits.LayerBytes {
		return "", &inflate.TooLargeError{Max: s.limits.LayerBytes}
	}
	return fromHex(hex.EncodeToString(h.Sum(nil))), nil
}

// commitLayer puts the layer into the store, unless another user has done so, and gives the user the right
// to it.
func (p *Pull) commitLayer(ctx context.Context, d *draft, diffID Digest) error {
	s := p.user.store
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	dir := s.layerDir(diffID)
	is, err := usable(dir, tarName)
	if err != nil {
		return err
	}
	if !is {
		if err := s.placeLocked(d, dir); err != nil {
			return err
		}
	}
	var g grants
	if err := g.addLocked(p.user, "layers", diffID); err != nil {
		return errors.Join(err, g.undoLocked(s))
	}
	return nil
}
