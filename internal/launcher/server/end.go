package server

import (
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// endTime is how long the end may take after the grace: the launcher ends commands, with the grace
// of their own, and removes tied sandboxes.
const endTime = 15*time.Second + time.Duration(spec.MaxGrace)

// joinTime is how long the end waits for the joins of transactions beyond that. A server of FUSE can hold up a join
// for ever. The next command of the sandbox finishes a join that was cut off.
const joinTime = 5 * time.Minute

// endAfter ends the process at the latest endTime after the grace of the commands, or when the joins
// of transactions end, for which it waits for joinTime more. It is for a process that is a launcher and nothing else.
//
// A client can delay each operation on a file that it has passed, also the close: with SO_LINGER,
// or with a FUSE server that does not answer. The kernel waits for such a server even at the end
// of the process, and the launcher cannot change this: see docs/launcher.md.
func (d *Daemon) endAfter() {
	time.AfterFunc(d.Grace+endTime, func() {
		d.awaitJoins(joinTime)
		d.Log.Error("calls and removals under way do not end and are given up; prune removes the rest. A file that a client has passed may not close",
			"after", d.Grace+endTime)
		os.Exit(1)
	})
}

// awaitJoins waits until no transaction joins, at most for this time.
func (s *Server) awaitJoins(patience time.Duration) {
	for end := time.Now().Add(patience); s.joins.Load() > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
}
