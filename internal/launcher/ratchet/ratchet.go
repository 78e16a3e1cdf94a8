// Package ratchet keeps the sensitivity of sandboxes on disk. A level outlives its sandbox,
// until the owner removes the sandbox: a sandbox that replaces a crashed one has the level of the
// crashed one.
package ratchet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// dirName is the directory of the levels, in the data directory.
const dirName = "ratchets"

// Levels are the levels of the sandboxes of one state root. The caller must hold the sandbox
// whose level it changes. A public sandbox has no file.
type Levels struct {
	// Data is the data directory. Prefix begins the names of the state root's files.
	Data, Prefix string
}

// An Owner is a user's name for sandboxes. Two users can have the same name, one after the other.
type Owner struct {
	ID  string // of the sandbox
	UID uint32
}

func (o Owner) String() string { return fmt.Sprintf("%s@%d", o.ID, o.UID) } // no id has "@"

func (l Levels) path(o Owner) string { return filepath.Join(l.Data, dirName, l.Prefix+o.String()) }

// content is the content of a file.
type content struct {
	Sensitivity spec.Sensitivity `json:"sensitivity"`
}

// Of is the level of a name. It is public for a name without a level.
func (l Levels) Of(o Owner) (spec.Sensitivity, error) {
	text, err := statedir.ReadOwn(l.path(o))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) { // there can be none
		return spec.SensitivityPublic, nil
	}
	var c content
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil && !slices.Contains(spec.Sensitivities(), c.Sensitivity) {
		err = fmt.Errorf("unknown level %q", c.Sensitivity)
	}
	if err != nil {
		return "", fmt.Errorf("the sensitivity of sandbox %s: %w", o.ID, err)
	}
	return c.Sensitivity, nil
}

// Raise keeps the level of a name, unless the name has the level or a higher one. The level is on
// disk when Raise returns.
func (l Levels) Raise(o Owner, to spec.Sensitivity) error {
	if !to.Above(spec.SensitivityPublic) {
		return nil
	}
	now, err := l.Of(o)
	if err != nil || !to.Above(now) {
		return err
	}
	if now == spec.SensitivityPublic { // there is no file yet
		err = l.checkRoom(o.UID)
	}
	if err == nil {
		err = l.write(o, to)
	}
	if err != nil {
		return fmt.Errorf("keep the sensitivity of sandbox %s: %w", o.ID, err)
	}
	return nil
}

// CanRaise returns the error that Raise would return because of the bound of names.
func (l Levels) CanRaise(o Owner, to spec.Sensitivity) error {
	if !to.Above(spec.SensitivityPublic) {
		return nil
	}
	now, err := l.Of(o)
	if err != nil || now != spec.SensitivityPublic || !to.Above(now) {
		return err
	}
	return l.checkRoom(o.UID)
}

// maxNames bounds the names with a level of each user other than root.
const maxNames = 1000

// checkRoom returns an error if a user has maxNames names with a level.
func (l Levels) checkRoom(uid uint32) error {
	if uid == 0 {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(l.Data, dirName))
	names := 0
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), Owner{UID: uid}.String()) {
			names++
		}
	}
	if err == nil && names >= maxNames {
		err = fmt.Errorf("user %d has %d names of sandboxes with a level, the most that are kept; end the level of a name with down", uid, names)
	}
	return erase.IgnoreMissing(err)
}

// draftMark begins the name of a file while it is written. No id begins with a dot.
const draftMark = "."

// RemoveDrafts removes the drafts that killed processes have left for this name, of all owners.
func (l Levels) RemoveDrafts(id string) error {
	drafts, err := descriptor.Glob(filepath.Join(l.Data, dirName), draftMark+l.Prefix+id+"@*")
	for _, file := range drafts {
		err = errors.Join(err, erase.IgnoreMissing(os.Remove(file)))
	}
	return err
}

func (l Levels) write(o Owner, level spec.Sensitivity) error {
	dir, err := statedir.OpenData(l.Data, dirName)
	if err != nil {
		return err
	}
	defer dir.Close()
	text, err := json.Marshal(content{level})
	if err != nil {
		return err
	}
	f := draft.File{Path: l.path(o), Draft: filepath.Join(dir.Name(), draftMark+l.Prefix+o.String()), IsDurable: true}
	return f.WriteBytes(text)
}

// Forget ends the level of a name, whose sandbox the owner has removed.
func (l Levels) Forget(o Owner) error {
	err := os.Remove(l.path(o))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}
