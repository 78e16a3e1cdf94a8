package kernel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"

	subid "github.com/moby/sys/user"
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
	if failed, ok := errors.AsType[*callError](err); ok && failed.call == "clone" {
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
	if start, ok, err := subordinateOf(file, names); ok || err != nil && !errors.Is(err, os.ErrNotExist) {
		return start, err
	}
	owner := names[len(names)-1]
	return 0, &absentError{
		what: fmt.Sprintf("%s gives %s no %d ids", file, owner, sandboxIDs),
		fix:  "grant them, as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 " + owner,
	}
}

// subordinateOf is the first range in a file like /etc/subuid that one of the owners has and
// that is large enough. The library takes a text that is no number for 0, which is root.
func subordinateOf(file string, owners []string) (start int, ok bool, err error) {
	ranges, err := subid.ParseSubIDFileFilter(file, func(s subid.SubID) bool {
		return slices.Contains(owners, s.Name) && s.SubID > 0 && s.Count >= sandboxIDs
	})
	if err != nil || len(ranges) == 0 {
		return 0, false, err
	}
	return int(ranges[0].SubID), true, nil
}
