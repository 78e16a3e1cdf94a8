package server

import (
	"cmp"
	"fmt"
	"io/fs"
	"os/user"
	"strconv"
)

// Access returns the mode and the group of a socket, of the texts of --mode and --group. Without them
// only the launcher's user may connect; with a group its members may, too.
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
	if id, err := strconv.ParseUint(name, 10, 32); err == nil {
		return int(id), nil
	}
	known, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("group %s does not exist; make it with: groupadd --system %[1]s", name)
	}
	return strconv.Atoi(known.Gid)
}
