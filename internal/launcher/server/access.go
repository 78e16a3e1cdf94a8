package server

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os/user"
	"strconv"
)

// Access returns the mode and the group of a socket from the values of --mode and --group. An empty
// mode lets only the launcher's user connect, and with a group also the members of the group.
func Access(mode, group string) (fs.FileMode, int, error) {
	gid, usual := SameGroup, "0600"
	if group != "" {
		var err error
		if gid, err = groupID(group); err != nil {
			return 0, 0, fmt.Errorf("option --group: %w", err)
		}
		usual = "0660"
	}
	mode = cmp.Or(mode, usual)
	bits, err := strconv.ParseUint(mode, 8, 9)
	if err != nil {
		return 0, 0, fmt.Errorf("option --mode %s: want an octal number up to 0777", mode)
	}
	return fs.FileMode(bits), gid, nil
}

// groupID returns the number of a group, by its number or name.
func groupID(name string) (int, error) {
	// chown(2) takes the largest number for no change.
	if id, err := strconv.ParseUint(name, 10, 32); err == nil && id < math.MaxUint32 {
		return int(id), nil
	}
	known, err := user.LookupGroup(name)
	if _, unknown := errors.AsType[user.UnknownGroupError](err); unknown {
		return 0, fmt.Errorf("group %s does not exist; make it with: groupadd --system %[1]s", name)
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(known.Gid)
}
