package kernel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// probeSubordinateIDs is an ordinary user's way to a range: newuidmap(1) and newgidmap(1),
// which have the right, give the ranges of /etc/subuid and /etc/subgid.
func probeSubordinateIDs() (string, error) {
	uid, err := subordinateStart("/etc/subuid")
	if err != nil {
		return "", err
	}
	gid, err := subordinateStart("/etc/subgid")
	if err != nil {
		return "", err
	}
	s := newScript()
	defer s.free()
	s.call("setresgid", unix.SYS_SETRESGID, num(0), num(0), num(0))
	s.call("setresuid", unix.SYS_SETRESUID, num(0), num(0), num(0))
	err = s.run(unix.CLONE_NEWUSER, func(pid int) error {
		if _, err := procOf(pid); err != nil {
			return err
		}
		if err := mapWith("newuidmap", pid, uid); err != nil {
			return err
		}
		return mapWith("newgidmap", pid, gid)
	})
	var failed *callError
	if errors.As(err, &failed) && failed.call == "clone" {
		return "", fmt.Errorf("%w: %w", errNoUserNamespace, err)
	}
	return fmt.Sprintf("%d ids from %d on, by newuidmap", sandboxIDs, uid), err
}

// errRefused is in the error where a program that has the right did not use it.
var errRefused = errors.New("refused")

func mapWith(program string, pid, start int) error {
	out, err := exec.Command(program, strconv.Itoa(pid), "0", strconv.Itoa(start), strconv.Itoa(sandboxIDs)).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return &absentError{
			what: program + " is not installed",
			fix:  "install it (Debian and Ubuntu: apt install uidmap; Fedora: dnf install shadow-utils)",
		}
	}
	if err != nil {
		return &callError{call: program, err: fmt.Errorf("%w (%w: %s)", errRefused, err, strings.TrimSpace(string(out)))}
	}
	return nil
}

// subordinateStart is the first id of a range of the caller's that is large
// enough for a sandbox; subuid(5).
func subordinateStart(file string) (int, error) {
	uid := strconv.Itoa(os.Geteuid())
	names := []string{uid}
	if u, err := user.LookupId(uid); err == nil {
		names = append(names, u.Username)
	}
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if start, ok := parseSubordinate(strings.TrimSpace(line), names); ok {
			return start, nil
		}
	}
	owner := names[len(names)-1]
	return 0, &absentError{
		what: fmt.Sprintf("%s gives %s no %d ids", file, owner, sandboxIDs),
		fix:  "grant them, as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 " + owner,
	}
}

// parseSubordinate reads "owner:start:count".
func parseSubordinate(line string, owners []string) (start int, ok bool) {
	fields := strings.Split(line, ":")
	if len(fields) != 3 {
		return 0, false
	}
	for _, owner := range owners {
		if fields[0] != owner {
			continue
		}
		start, err := strconv.Atoi(fields[1])
		count, err2 := strconv.Atoi(fields[2])
		return start, err == nil && err2 == nil && count >= sandboxIDs
	}
	return 0, false
}
