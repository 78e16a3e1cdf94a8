package server

import (
	"log/slog"
	"os"
	"time"
)

// endTime is how long the end may take after the grace: the launcher kills commands, and removes
// tied sandboxes.
const endTime = 15 * time.Second

// endAfter ends the process at the latest endTime after the grace of the commands. It is for a
// process that is a launcher and nothing else.
//
// A client can delay each operation on a file that it has passed, also the close: with SO_LINGER,
// or with a FUSE server that does not answer. The kernel waits for such a server even at the end
// of the process, and the launcher cannot change this: see docs/launcher.md.
func endAfter(grace time.Duration, log *slog.Logger) {
	time.AfterFunc(grace+endTime, func() {
		log.Error("calls and removals under way do not end and are given up; prune removes the rest. A file that a client has passed may not close",
			"after", grace+endTime)
		os.Exit(1)
	})
}
