package jobs

import (
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A baseline is the state of a sandbox before a command. A Result tells only of changes since then: an earlier
// command can have caused the others.
type baseline struct {
	// unreachable is the count of a sandbox without a network; isCounted is false elsewhere.
	unreachable int64
	isCounted   bool
	// isSharedMemoryFull says that the shared memory had no room.
	isSharedMemoryFull bool
}

func baselineOf(r record.Record) (b baseline) {
	if r.Config.Network == spec.NetworkNone {
		b.unreachable, b.isCounted = unreachable(r.Init)
	}
	_, b.isSharedMemoryFull = sharedMemoryFull(r.Init)
	return b
}

// missedNetwork says that a process of the sandbox has tried to reach a network since then, and that there is none.
func (b baseline) missedNetwork(r record.Record) bool {
	if !b.isCounted {
		return false
	}
	now, isKnown := unreachable(r.Init)
	return isKnown && now > b.unreachable
}

// tellFilled adds the file systems that a successful command has filled. The shared memory counts if it has become
// full since the start of the command: a Result lists no files of it.
func (p *Process) tellFilled(r *spec.Result) {
	written := writtenTo(r.Files, record.WritableBinds(p.Config.Config))
	var all []fullFileSystem
	if len(written) > 0 {
		all = p.Live.all.fullStores(p.Config)
	}
	if !p.baseline.isSharedMemoryFull {
		written[sharedMemory] = true
		all = append(all, fullSharedMemory(p.Config)...)
	}
	tellFull(r, all, written)
}
