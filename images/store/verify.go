package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Verify reads all layers of an image, and makes the index again: each layer must have its digest, and the
// index must be the same. The error is a [DamagedError] for the first difference. Damaged content is marked
// for all users, and no image with it can be used before the next pull.
func (u User) Verify(ctx context.Context, name string) error {
	return during("verify image "+clip(name), u.verify(ctx, name))
}

func (u User) verify(ctx context.Context, name string) error {
	// No use is necessary: the open files stay whole during a removal.
	h, err := locked(ctx, u.store, func() (*Held, error) { return u.openLocked(name) })
	if err != nil {
		return err
	}
	defer h.Close()
	for i, l := range h.Image.Layers {
		got, err := hashOf(ctx, h.Layers[i])
		if err != nil {
			return err
		}
		if got != l {
			dir := u.store.layerDir(l)
			return errors.Join(&DamagedError{"layer " + string(l), "its digest is " + string(got)}, u.store.markDamaged(ctx, dir, h.Layers[i]))
		}
	}
	return u.store.verifyIndex(ctx, h)
}

// hashOf is the digest of a file. It does not move the offset of the file.
func hashOf(ctx context.Context, f *os.File) (Digest, error) {
	h := sha256.New()
	buffer := make([]byte, copiedAtOnce)
	for at := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := f.ReadAt(buffer, at)
		h.Write(buffer[:n])
		at += int64(n)
		if errors.Is(err, io.EOF) {
			return fromHex(hex.EncodeToString(h.Sum(nil))), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// verifyIndex makes the index of an image again, and compares.
func (s *Store) verifyIndex(ctx context.Context, h *Held) (err error) {
	d, err := s.newDraft(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	index, err := d.create(indexName)
	if err != nil {
		return err
	}
	defer index.Close()
	if err := s.makeIndex(ctx, h.Layers, index); err != nil {
		return err
	}
	at, err := difference(ctx, index, h.Index)
	if err != nil || at < 0 {
		return err
	}
	id := h.Image.ID
	return errors.Join(&DamagedError{"image " + string(id), fmt.Sprintf("the index differs from that of its layers at byte %d", at)},
		s.markDamaged(ctx, s.imageDir(id), h.Index))
}

// difference is the offset of the first block in which two files differ, or -1.
func difference(ctx context.Context, a, b *os.File) (int64, error) {
	first, second := make([]byte, copiedAtOnce), make([]byte, copiedAtOnce)
	for at := int64(0); ; at += copiedAtOnce {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		n, err := a.ReadAt(first, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		m, err := b.ReadAt(second, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if !bytes.Equal(first[:n], second[:m]) {
			return at, nil
		}
		if n < copiedAtOnce {
			return -1, nil
		}
	}
}

// markDamaged marks the content of a directory, if the file is still a part of it: another process may have
// replaced the content.
func (s *Store) markDamaged(ctx context.Context, dir string, part *os.File) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	mine, err := part.Stat()
	if err != nil {
		return err
	}
	named, err := os.Lstat(filepath.Join(dir, filepath.Base(part.Name())))
	if err != nil || !os.SameFile(mine, named) {
		return nil // the content has been removed
	}
	return markLocked(dir)
}
