package container

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
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
	file := freezerFile(root, id)
	for end := time.Now().Add(freezingPatience); file != ""; time.Sleep(5 * time.Millisecond) {
		state, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || err == nil && strings.TrimSpace(string(state)) != "FREEZING" {
			return nil
		}
		if err != nil {
			return err
		}
		if time.Now().After(end) {
			return os.WriteFile(file, []byte("THAWED"), 0)
		}
	}
	return nil
}

// freezerFile is the state of the container's v1 freezer; "" where there is
// none, or no such container, or where its id is none that Load takes.
func freezerFile(root, id string) string {
	if filepath.Base(id) != id {
		return ""
	}
	var paths map[string]string
	data, err := os.ReadFile(filepath.Join(root, id, cgroupsName))
	if err == nil {
		err = json.Unmarshal(data, &paths)
	}
	if err != nil || paths["freezer"] == "" {
		return ""
	}
	return filepath.Join(paths["freezer"], "freezer.state")
}
