package processes

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Users are the users of a sandbox.
type Users struct {
	first uint32 // the host's id of the sandbox's root
	names map[uint32]string
	owner func(pid int) (uint32, error)
}

// UsersOf are the users of the sandbox that has the processes. passwd is the content of the sandbox's
// /etc/passwd, and may have any form. A user without a name there is a number, as inside. The result
// is nil if the processes have no range of ids.
func UsersOf(pids []int, passwd []byte) *Users {
	for _, pid := range pids {
		if first, ok := firstID(pid); ok {
			return &Users{first: first, names: spec.UserNames(passwd), owner: owner}
		}
	}
	return nil
}

// firstID is the first id of the range that the processes of a sandbox have. A command can give itself
// a user namespace with a map of its own, but that map has only one id (user_namespaces(7)).
func firstID(pid int) (uint32, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(text))
	if len(fields) != 3 || fields[0] != "0" || fields[2] != strconv.Itoa(spec.AgentID+1) {
		return 0, false
	}
	first, err := strconv.ParseUint(fields[1], 10, 32)
	return uint32(first), err == nil
}

// owner is the effective user of a process, as ps shows it.
func owner(pid int) (uid uint32, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, ids, _ := strings.Cut(string(status), "\nUid:")
	var realID uint32
	_, err = fmt.Sscan(ids, &realID, &uid)
	return uid, err
}

// inLine is a line of ps about a process, with the name of the sandbox's user in place of the host's
// id. An id that the process does not have now stays.
func (u *Users) inLine(header, line string, pid int) string {
	if u == nil {
		return line
	}
	host, err := u.owner(pid)
	at := fieldAt(line, column(header))
	if err != nil || at < 0 || host < u.first || host-u.first > spec.AgentID {
		return line
	}
	cell, rest, _ := strings.Cut(line[at:], " ")
	if !shows(cell, host) {
		return line
	}
	name, next := u.name(host-u.first), strings.TrimLeft(rest, " ")
	if next != "" {
		name = fitted(name, len(cell)+len(rest)-len(next)) + " "
	}
	return line[:at] + name + next
}

// column is the number of the field with names of users, or -1. The title UID stands for names in the
// format -f, where UID is first and aligned to the left. Elsewhere UID stands for numbers.
func column(header string) int {
	if strings.HasPrefix(header, "UID ") {
		return 0
	}
	return slices.Index(strings.Fields(header), "USER")
}

// fieldAt is the place of the n-th field in a line, or -1.
func fieldAt(line string, n int) int {
	at := 0
	for field := range strings.FieldsSeq(line) {
		at += strings.Index(line[at:], field)
		if n == 0 {
			return at
		}
		n--
		at += len(field)
	}
	return -1
}

// shows says that ps means the id with a cell. ps shortens names that are too long for a cell.
func shows(cell string, id uint32) bool {
	digits, short := strings.CutSuffix(cell, "+")
	whole := strconv.FormatUint(uint64(id), 10)
	return digits == whole || short && digits != "" && strings.HasPrefix(whole, digits)
}

func (u *Users) name(uid uint32) string {
	if name, ok := u.names[uid]; ok {
		return name
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// fitted is a name in a cell of ps: a longer one ends with "+".
func fitted(name string, width int) string {
	if len(name) > width {
		return name[:width-1] + "+"
	}
	return fmt.Sprintf("%-*s", width, name)
}
