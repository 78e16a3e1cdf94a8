package networks

import (
	"github.com/sandbox-runtime/sandbox-runtime/internal/ratchet"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

func (n Networks) levels() ratchet.Levels {
	return ratchet.Levels{Data: n.Data, Prefix: n.CgroupPrefix()}
}

// Level is the sensitivity that a sandbox with this id begins with at least.
func (n Networks) Level(id string) (ratchet.Level, error) { return n.levels().Of(id) }

// KeepLevel brings the level of a record to disk.
func (n Networks) KeepLevel(id string, r record.Record) error {
	return n.levels().Raise(id, ratchet.Level{Sensitivity: r.Config.Sensitivity, UID: r.UID})
}

// KeepLevelOf keeps the level of a sandbox whose directory is about to go, although its owner has
// not removed the sandbox. A sandbox that ends with its creator needs no level.
func (n Networks) KeepLevelOf(id string) error {
	r, err := record.Read(n.Dir(id))
	if err != nil || r.Tied {
		return nil //nolint:nilerr // a sandbox without a record was never up, or has its level on disk
	}
	return n.KeepLevel(id, r)
}

// ForgetLevel ends the level of a sandbox that its owner has removed.
func (n Networks) ForgetLevel(id string) error { return n.levels().Forget(id) }
