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

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
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

// A Level is the level of the sandboxes with a name.
type Level struct {
	Sensitivity spec.Sensitivity `json:"sensitivity"`
	// UID is the user whose sandbox reached the level.
	UID uint32 `json:"uid"`
}

func (l Levels) path(id string) string { return filepath.Join(l.Data, dirName, l.Prefix+id) }

// Of is the level of a name. It is public for a name without a level.
func (l Levels) Of(id string) (Level, error) {
	level := Level{Sensitivity: spec.SensitivityPublic}
	text, err := statedir.ReadOwn(l.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return level, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &level)
	}
	if err != nil {
		return level, fmt.Errorf("the sensitivity of sandbox %s: %w", id, err)
	}
	return level, nil
}

// Raise keeps the level of a name, unless the name has the level or a higher one. The level is on
// disk when Raise returns.
func (l Levels) Raise(id string, to Level) error {
	if !to.Sensitivity.Above(spec.SensitivityPublic) {
		return nil
	}
	now, err := l.Of(id)
	if err != nil || !to.Sensitivity.Above(now.Sensitivity) {
		return err
	}
	if err := l.write(id, to); err != nil {
		return fmt.Errorf("keep the sensitivity of sandbox %s: %w", id, err)
	}
	return nil
}

func (l Levels) write(id string, level Level) error {
	dir, err := statedir.OpenData(l.Data, dirName)
	if err != nil {
		return err
	}
	defer dir.Close()
	text, err := json.Marshal(level)
	if err != nil {
		return err
	}
	draft := filepath.Join(dir.Name(), "."+l.Prefix+id) // no id begins with a dot
	if err := writeSynced(draft, text); err != nil {
		return errors.Join(err, os.Remove(draft))
	}
	if err := os.Rename(draft, l.path(id)); err != nil {
		return err
	}
	return dir.Sync()
}

func writeSynced(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// Forget ends the level of a name, whose sandbox the owner has removed.
func (l Levels) Forget(id string) error {
	err := os.Remove(l.path(id))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}
