package server

import (
	"log/slog"
	"os"
	"time"
)

// endTime is how long the end may take when the grace is over: commands are killed,
// sandboxes removed.
const endTime = 15 * time.Second

// endAfter is for a process that is a launcher and nothing else: the process ends soon
// after the grace of the commands, in any case.
//
// To look at a file that a client has passed, to close it, or to close a socket with it,
// takes as long as the client likes: with SO_LINGER, or with a FUSE server that does not
// answer. The kernel waits for that server even in a process that ends, and nothing here
// can help: see docs/launcher.md.
func endAfter(grace time.Duration, log *slog.Logger) {
	time.AfterFunc(grace+endTime, func() {
		log.Error("calls under way do not end and are given up; a file that a client has passed may not close",
			"after", grace+endTime)
		os.Exit(1)
	})
}
