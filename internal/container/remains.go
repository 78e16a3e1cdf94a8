package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/cgroups"
)

// cgroupsName is a file in the state directory that names the container's
// cgroups from before they are made. libcontainer writes its own state.json
// when they have long been there: of a start that is killed in between, this
// file alone tells what to remove.
const cgroupsName = "cgroups.json"

func (c *Container) recordCgroups() error {
	state, err := c.lc.State()
	if err != nil {
		return err
	}
	data, err := json.Marshal(state.CgroupPaths)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.root, c.ID(), cgroupsName), data, 0o600)
}

// RemoveRemains removes the cgroups and the state directory of an id that
// [Load] does not load: one whose create was killed half way, or whose state
// is damaged. What it had started the caller ends first, unless it ends by
// itself. An id that was never there is no error.
func RemoveRemains(root, id string) error {
	_, err := Load(root, id)
	if err == nil {
		return fmt.Errorf("container %s is complete: %w", id, ErrExist)
	}
	if errors.Is(err, ErrInvalidID) { // it may name any directory
		return err
	}
	dir := filepath.Join(root, id)
	data, err := os.ReadFile(filepath.Join(dir, cgroupsName))
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(dir)
	}
	if err != nil {
		return err
	}
	var paths map[string]string
	// A file cut short by a kill was followed by nothing that it could name.
	if json.Unmarshal(data, &paths) == nil {
		if err := cgroups.RemovePaths(paths); err != nil {
			return fmt.Errorf("container %s: %w", id, err)
		}
	}
	return os.RemoveAll(dir)
}
