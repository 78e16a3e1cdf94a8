package container

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// freezingPatience is more than any freeze takes that comes about.
const freezingPatience = 2 * time.Second

// settleFreezer thaws a container that is about to be frozen and never will be:
// a thread in a system call that the freezer can't interrupt keeps it so, or on
// v1 one that an execve(2) of its process waits for and that is frozen already.
// libcontainer waits for the end of that whenever it is asked for a container's
// status, on v1 without a limit, and on v2 10 seconds, to fail then.
//
// A container without a freezer, or without any state, is no error.
func settleFreezer(root, id string) error {
	f, ok := freezerOf(root, id)
	if !ok {
		return nil
	}
	for end := time.Now().Add(freezingPatience); ; time.Sleep(5 * time.Millisecond) {
		freezing, err := f.freezing()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) { // the group is gone
			return nil
		}
		if err != nil || !freezing {
			return err
		}
		if time.Now().After(end) {
			return f.thaw()
		}
	}
}

// freezePatiently freezes a container where libcontainer has given that up: on v1 it
// tries for a third of a second only, for most of which it has them thawed, and a
// process that waits for a disk or a processor need not come to stand still by then.
// Where that does not come about the container is thawed and the error is given.
func freezePatiently(root, id string, gaveUp error) error {
	f, ok := freezerOf(root, id)
	if !ok || !f.v1 {
		return gaveUp
	}
	group, err := os.OpenRoot(f.group) // by its name it may be another's meanwhile
	if err != nil {
		return err
	}
	defer group.Close()
	set := func(state string) error { return group.WriteFile("freezer.state", []byte(state), 0) }
	for end, turn := time.Now().Add(freezingPatience), 1; ; turn++ {
		if turn%8 == 0 { // for an execve(2) that waits for a thread that is frozen
			err = set("THAWED")
		}
		err = errors.Join(err, set("FROZEN"))
		state, readErr := group.ReadFile("freezer.state")
		switch err = errors.Join(err, readErr); {
		case err != nil:
			return err
		case strings.TrimSpace(string(state)) == "FROZEN":
			return nil
		case time.Now().After(end):
			return errors.Join(gaveUp, set("THAWED"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A freezer is where a container's processes are frozen.
type freezer struct {
	group string // directory
	v1    bool   // by freezer.state, not cgroup.freeze
}

// freezerOf finds none where there is no such container yet, or where its id is
// none that Load takes.
func freezerOf(root, id string) (f freezer, ok bool) {
	if filepath.Base(id) != id {
		return f, false
	}
	paths, err := readGroups(filepath.Join(root, id))
	if err != nil {
		return f, false
	}
	if group := paths["freezer"]; group != "" {
		return freezer{group, true}, true
	}
	return freezer{paths[""], false}, paths[""] != ""
}

// freezing says whether processes are asked to stand still and do not yet.
func (f freezer) freezing() (bool, error) {
	if f.v1 {
		state, err := f.read("freezer.state")
		return state == "FREEZING", err
	}
	if asked, err := f.read("cgroup.freeze"); err != nil || asked != "1" {
		return false, err
	}
	events, err := f.read("cgroup.events")
	return strings.Contains(events, "frozen 0"), err
}

func (f freezer) thaw() error {
	if f.v1 {
		return os.WriteFile(filepath.Join(f.group, "freezer.state"), []byte("THAWED"), 0)
	}
	return os.WriteFile(filepath.Join(f.group, "cgroup.freeze"), []byte("0"), 0)
}

func (f freezer) read(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(f.group, name))
	return strings.TrimSpace(string(data)), err
}
