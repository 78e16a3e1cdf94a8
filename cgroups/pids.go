package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// PidsWithin returns a limit of tasks, or the present one of the group at path if that is
// lower.
func (h *Host) PidsWithin(path string, limit int64) (int64, error) {
	if err := checkPath(path); err != nil {
		return 0, err
	}
	for _, t := range h.trees {
		if !slices.Contains(t.controllers, "pids") {
			continue
		}
		text, err := os.ReadFile(t.path(path) + "/pids.max")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		n, err := limitFrom(strings.TrimSpace(string(text)))
		if err != nil {
			return 0, fmt.Errorf("pids.max of cgroup %s: %w", path, err)
		}
		limit = min(limit, n)
	}
	return limit, nil
}
