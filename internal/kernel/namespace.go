package kernel

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// sandboxIDs is how many ids a sandbox has.
	sandboxIDs = 1 << 16
	// firstSandboxID is the first of the host's ids that sandboxes get, in
	// the stretch that systemd's UIDS-GIDS.md calls unused.
	firstSandboxID = 0x70000000
)

const allNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// errNoUserNamespace is why nothing else that takes one could be tried.
var errNoUserNamespace = errors.New("no user namespace to try it in")

// A probe tries a feature.
type probe func(*prober) (detail string, err error)

// probeHere probes a feature in a child without new namespaces.
func probeHere(write func(*script)) probe {
	return func(*prober) (string, error) { return "", runHere(write) }
}

// probeIn probes a feature in a child with new namespaces; see prober.run.
func probeIn(flags uintptr, write func(*script)) probe {
	return func(p *prober) (string, error) {
		return "", runScript(write, func(s *script) error { return p.run(s, flags) })
	}
}

// inUserNamespace probes a feature as root of a new user namespace.
func inUserNamespace(flags uintptr, write func(*script)) probe {
	return func(*prober) (string, error) {
		return "", runScript(write, func(s *script) error { return runAsNamespaceRoot(s, flags) })
	}
}

// run makes a script's calls in a child with root's rights: the caller's own,
// or in a user namespace those of its root.
func (p *prober) run(s *script, flags uintptr) error {
	if p.admin {
		return s.run(flags, nil)
	}
	return runAsNamespaceRoot(s, flags)
}

// runAsNamespaceRoot makes a script's calls as root of a new user namespace
// that has no other id.
func runAsNamespaceRoot(s *script, flags uintptr) error {
	err := s.run(flags|unix.CLONE_NEWUSER, mapSelf)
	if failed, ok := errors.AsType[*callError](err); ok && (failed.call == "clone" || failed.call == writeIDs) {
		// Which of the flags was refused?
		probe := newScript()
		defer probe.free()
		if userErr := probe.run(unix.CLONE_NEWUSER, mapSelf); userErr != nil {
			return fmt.Errorf("%w: %w", errNoUserNamespace, userErr)
		}
	}
	return err
}

// mapSelf makes the caller's ids root's, which takes an ordinary user no
// privilege (user_namespaces(7), "Defining user and group ID mappings").
func mapSelf(pid int) error {
	if err := writeProc(pid, "setgroups", "deny"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := writeProc(pid, "gid_map", fmt.Sprintf("0 %d 1", os.Getegid())); err != nil {
		return err
	}
	err := writeProc(pid, "uid_map", fmt.Sprintf("0 %d 1", os.Geteuid()))
	if os.Geteuid() == 0 && errors.Is(err, unix.EPERM) {
		// To map root itself takes CAP_SETFCAP, which sandboxes do not need
		// (kernel/user_namespace.c:verify_root_map(), Linux 5.12).
		return writeProc(pid, "uid_map", sandboxRange())
	}
	return err
}

// mapRange gives a namespace the range of ids that a sandbox would get.
func mapRange(pid int) error {
	if err := writeProc(pid, "gid_map", sandboxRange()); err != nil {
		return err
	}
	return writeProc(pid, "uid_map", sandboxRange())
}

func sandboxRange() string { return fmt.Sprintf("0 %d %d", firstSandboxID, sandboxIDs) }

// writeIDs is the call that a [*callError] names where ids were refused.
const writeIDs = "write the ids of a user namespace"

func writeProc(pid int, name, text string) error {
	dir, err := procOf(pid)
	if err != nil {
		return err
	}
	err = os.WriteFile(dir+"/"+name, []byte(text), 0)
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno != unix.ENOENT {
		return &callError{call: writeIDs, err: errno}
	}
	return err
}

// procOf is the directory of a process of this pid namespace. Where /proc is
// another namespace's, the number means another process there.
func procOf(pid int) (string, error) {
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return "", err
	}
	if self != strconv.Itoa(os.Getpid()) {
		return "", errors.New("/proc belongs to another pid namespace")
	}
	return "/proc/" + strconv.Itoa(pid), nil
}

// userNamespace returns a descriptor of a new user namespace, which lives as
// long as that.
func userNamespace(mapIDs idMapper) (*os.File, error) {
	s := newScript()
	defer s.free()
	s.call("ppoll", unix.SYS_PPOLL, num(0), num(0), num(0), num(0)) // for ever
	c, err := s.start(unix.CLONE_NEWUSER, mapIDs)
	if err != nil {
		return nil, err
	}
	file, err := os.Open("/proc/" + strconv.Itoa(c.pid) + "/ns/user") // which mapIDs has been to
	c.kill()
	_ = c.wait() // says that it was killed
	return file, err
}

// probeUserNamespaces tries not only whether there is one but also whether its
// root has rights: a security module may give the namespace and keep those.
func probeUserNamespaces(*prober) (string, error) {
	s := newScript()
	defer s.free()
	s.call("unshare in a new user namespace", unix.SYS_UNSHARE, num(unix.CLONE_NEWUTS))
	return "", s.run(unix.CLONE_NEWUSER, mapSelf)
}

// tryNamespace tries one kind by clone(2)'s flag. Unshare knows them all,
// the time namespace included, whose flag clone(2) has no room for.
func tryNamespace(flag int) func(*script) {
	return func(s *script) { s.call("unshare", unix.SYS_UNSHARE, num(flag)) }
}

// probeIDRange makes a user namespace with a sandbox's ids, all the other namespaces in
// it, and becomes its root, as the first process of a sandbox does.
func probeIDRange(p *prober) (string, error) {
	switch {
	case p.admin:
	case os.Geteuid() == 0:
		return "", &absentError{what: "root has not the right to give ids here", fix: privileged}
	default:
		return probeSubordinateIDs()
	}
	s := newScript()
	defer s.free()
	s.call("setgroups", unix.SYS_SETGROUPS, num(0), num(0))
	s.call("setresgid", unix.SYS_SETRESGID, num(0), num(0), num(0))
	s.call("setresuid", unix.SYS_SETRESUID, num(0), num(0), num(0))
	err := s.run(unix.CLONE_NEWUSER|allNamespaces, mapRange)
	if failed, ok := errors.AsType[*callError](err); ok && failed.call == writeIDs {
		return "", &absentError{
			what: fmt.Sprintf("the ids from %d to %d are not this user namespace's to give: %v", firstSandboxID, firstSandboxID+sandboxIDs-1, failed.err),
			fix:  "start the container around it with the host's ids: --userns=host, and not by an ordinary user",
		}
	}
	return fmt.Sprintf("%d ids from %d on", sandboxIDs, firstSandboxID), err
}
