package networks

import (
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/ratchet"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func (n Networks) levels() ratchet.Levels {
	return ratchet.Levels{Data: n.Data, Prefix: n.CgroupPrefix()}
}

// Level is the sensitivity that a user's sandbox with this id begins with at least.
func (n Networks) Level(id string, uid uint32) (spec.Sensitivity, error) {
	return n.levels().Of(ratchet.Owner{ID: id, UID: uid})
}

// KeepLevel brings the level of a record to disk. A sandbox that ends with its creator needs no
// level on disk.
func (n Networks) KeepLevel(id string, r record.Record) error {
	if r.Tied {
		return nil
	}
	return n.levels().Raise(ratchet.Owner{ID: id, UID: r.UID}, r.Config.Sensitivity)
}

// KeepLevelOf keeps the level of a sandbox whose directory is about to go, although its owner has
// not removed the sandbox.
func (n Networks) KeepLevelOf(id string) error {
	r, err := record.Read(n.Dir(id))
	if err != nil {
		return nil //nolint:nilerr // a sandbox without a record was never up, or has its level on disk
	}
	return n.KeepLevel(id, r)
}

// ForgetLevel ends the level of a user's name, whose sandbox the user has removed.
func (n Networks) ForgetLevel(id string, uid uint32) error {
	return n.levels().Forget(ratchet.Owner{ID: id, UID: uid})
}

// RemoveLevelDrafts removes the drafts of the name's level that killed processes have left. The caller must hold
// the sandbox's directory.
func (n Networks) RemoveLevelDrafts(id string) error { return n.levels().RemoveDrafts(id) }
