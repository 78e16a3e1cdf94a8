package container

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// freezingPatience is more than libcontainer takes to freeze a group or to give
// up, which is some 300 ms.
const freezingPatience = 2 * time.Second

// settleFreezer thaws a container that is about to be frozen and never will be.
// A v1 freezer stays in FREEZING for as long as a frozen thread is awaited by an
// execve(2) of its process; who freezes notices, thaws and tries again, but a
// pause that was killed leaves it so. libcontainer waits for the end of FREEZING
// without a limit whenever it is asked for a container's status.
//
// A container without a v1 freezer, or without any state, is no error.
func settleFreezer(root, id string) error {
	if filepath.Base(id) != id {
		return nil // Load refuses the id, or finds no container
	}
	data, err := os.ReadFile(filepath.Join(root, id, cgroupsName))
	if err != nil {
		return nil // likewise
	}
	var paths map[string]string
	if json.Unmarshal(data, &paths) != nil || paths["freezer"] == "" {
		return nil
	}
	file := filepath.Join(paths["freezer"], "freezer.state")
	for end := time.Now().Add(freezingPatience); ; time.Sleep(5 * time.Millisecond) {
		state, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(state)) != "FREEZING" {
			return nil // also the group that is gone
		}
		if time.Now().After(end) {
			return os.WriteFile(file, []byte("THAWED"), 0)
		}
	}
}
