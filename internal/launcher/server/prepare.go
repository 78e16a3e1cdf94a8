package server

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Prepare has a launcher finish removals after its answers, and keep blank sandboxes within the bounds
// of the option --pool; nil: no pool. The first blanks are for clients with PATH and HOME of this process.
// The caller must close the launcher, also after an error.
func Prepare(l *launcher.Launcher, pool *string, log *slog.Logger) error {
	l.FinishRemovalsAside(func(err error) { log.Error("a removal is not finished; prune removes the rest", "error", err) })
	if pool == nil {
		return nil
	}
	bounds, err := spec.ParsePool(*pool)
	if err != nil {
		return fmt.Errorf("option --pool: %w", err)
	}
	failed := func(err error) { log.Error("blank sandboxes", "error", err) }
	return l.StartPool(bounds, os.Getenv("PATH"), os.Getenv("HOME"), failed)
}
