package cgroups

import (
	"errors"
	"io/fs"
)

// PidsWithin returns a limit of tasks, or the present one of the group at path if that is
// lower.
func (h *Host) PidsWithin(path string, limit int64) (int64, error) {
	g, err := h.Open(path)
	if err != nil {
		return 0, err
	}
	present, err := g.number(pidsLimit)
	if errors.Is(err, fs.ErrNotExist) || err == nil && present == Unknown {
		return limit, nil
	}
	return min(limit, present), g.failed("read the limit of tasks of", err)
}
