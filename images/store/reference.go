package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// A Reference is a name of an image, such as docker.io/library/busybox:latest. The caller completes names.
type Reference struct {
	Name   string
	Digest Digest `json:",omitempty"` // of the manifest, if there is one
	Image  Digest
}

// maxReference bounds the name of a reference, in bytes.
const maxReference = 512

func checkName(name string) error {
	if name == "" || len(name) > maxReference || strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar
	}) {
		return fmt.Errorf("invalid name %q: use 1 to %d visible characters", clip(name), maxReference)
	}
	return nil
}

// referencePath is the file of a reference. A name can hold characters that no file name can.
func (u User) referencePath(name string) string {
	return u.path("references", digestOf([]byte(name)).hex())
}

// referencesLocked are the references of the user, by name.
func (u User) referencesLocked() ([]Reference, error) {
	all, err := readRecords[Reference](u.path("references"))
	slices.SortFunc(all, func(a, b Reference) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}

// writeRecordLocked writes a file that readRecords reads.
func (s *Store) writeRecordLocked(path string, record any) error {
	content, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return s.writeLocked(path, content)
}

// readRecords reads the JSON files of a directory whose names are digests, and the links of [linkLocked].
func readRecords[T any](dir string) (all []T, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !isDigestName(e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		read := statedir.ReadOwn
		if e.Type() == fs.ModeSymlink {
			read = readLink
		}
		content, err := read(path)
		if err != nil {
			return nil, err
		}
		var record T
		if err := json.Unmarshal(content, &record); err != nil {
			return nil, fmt.Errorf("read %s: %w; remove the file", path, err)
		}
		all = append(all, record)
	}
	return all, erase.IgnoreMissing(err)
}

// minPrefix is the least number of digits that name an image.
const minPrefix = 4

// named finds the reference with a name.
func named(name string) func(Reference) bool {
	return func(r Reference) bool { return r.Name == name }
}

// findLocked returns the image that a name, an id, or the beginning of an id means. It reads the config of this
// image only.
func (u User) findLocked(name string) (image Image, err error) {
	references, err := u.referencesLocked()
	if err != nil {
		return image, err
	}
	id, found := Digest(""), false
	if i := slices.IndexFunc(references, named(name)); i >= 0 {
		id = references[i].Image
		// The image of a name can be in an unfinished removal.
		if found, err = u.hasLocked("images", id); err != nil {
			return image, err
		}
	}
	if !found {
		if id, err = u.findIDLocked(name); err != nil {
			return image, err
		}
	}
	return u.store.describeLocked(id, references)
}

// findIDLocked returns the id that an id, or the beginning of an id, means.
func (u User) findIDLocked(name string) (Digest, error) {
	all, err := digestsLocked(u.path("images"))
	if err != nil {
		return "", err
	}
	digits := strings.TrimPrefix(name, digestPrefix)
	var found []string
	if isHex(digits) && len(digits) >= minPrefix {
		for _, id := range all {
			if strings.HasPrefix(id.hex(), digits) {
				found = append(found, string(id))
			}
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w %q; list the images, or pull this one", ErrNotFound, clip(name))
	case 1:
		return Digest(found[0]), nil
	}
	return "", fmt.Errorf("id %q is ambiguous: %s; give more digits", name, strings.Join(found[:min(len(found), 5)], ", "))
}

// Find returns the image of the user that a name, an id, or the beginning of an id means.
func (u User) Find(ctx context.Context, name string) (Image, error) {
	image, err := locked(ctx, u.store, func() (Image, error) { return u.findLocked(name) })
	return image, during("find image "+clip(name), err)
}
