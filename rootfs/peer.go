package rootfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Peer is an ordinary user on whose behalf a root process puts a root together.
// What that process may do and the peer may not must not become the peer's: a
// sandbox shows its user nothing that the peer could not read, and lets nothing
// be written that the peer could not write. How that holds:
//
//   - The directory, the workspace and the binds are descriptors that the peer
//     opened ([Config.Files]); no path of the peer's is opened with root's
//     rights. A descriptor that was opened for reading proves that the peer, or
//     who passed it on to the peer, could read the file or list the directory.
//     One of O_PATH proves nothing: anybody has one of /root.
//   - Below a source the kernel decides in the sandbox as it does outside, by the
//     ids that a file has there. The one user and the one group that are mapped
//     to the sandbox's user have to be the peer's own. Were it the source's owner
//     whoever that is, the sandbox would read what others keep at mode 0600 below
//     a directory that everybody may list. A source of another owner is
//     shown with no id mapped: all that is left are the rights of others.
//   - The group of a source is not the peer's because the source is: what is made
//     in a set-group-id directory has a group that its maker need not be in. Then
//     the peer's own group is mapped in its place.
//   - For the same reason no ids are shown "as on disk": the sandbox's user has a
//     number that on disk may be anybody's.
//   - Written to is only what the peer owns, and below that what the peer's user
//     and group, or everybody, may write to.
//   - What this package itself looks up below a source, to make a mount point
//     there, it looks up with the peer's rights ([Peer.do]), and the same goes
//     for language prefixes, whose paths come from the peer: neither the names
//     in a closed directory nor what lies behind one are found out.
//   - Everything is decided on the held descriptor, and that is what is mounted.
//
// Not carried into the sandbox are rights that some have less of than everybody:
// a file of mode 0604, or with an entry for the peer in its access control list
// that denies what others may, is read inside as by others. The peer's paths are
// looked up in the mount namespace of this process; who must not see that, as
// users of a container, must not be given the launcher's socket.
type Peer struct {
	UID uint32
	// GIDs are the peer's groups, the primary one first.
	GIDs []uint32
}

func (p *Peer) validate() error {
	switch {
	case p == nil:
		return nil
	case p.UID == 0:
		return errors.New("peer: root is no peer, it has every right")
	case len(p.GIDs) == 0:
		return errors.New("peer: it has no group")
	}
	return nil
}

// FindLanguages is the function of that name, for what the peer can read.
func (p *Peer) FindLanguages(pathList, home string, binds []Bind) (found Languages, err error) {
	err = p.do(func() error {
		found = FindLanguages(pathList, home, binds)
		return nil
	})
	return found, err
}

// limit fits what a source shows to what the peer may have of it.
func (p *Peer) limit(s *source) error {
	switch {
	case p == nil:
	case s.uid == p.UID:
		s.shown = asUser
		if !slices.Contains(p.GIDs, s.gid) {
			s.gid = p.GIDs[0]
		}
	case s.writable:
		return &ForbiddenError{s.path, s.real, fmt.Sprintf("belongs to user %d, and only that user and root may have it written to", s.uid)}
	default:
		s.shown, s.foreign = asNobody, true
	}
	return nil
}

// do runs f with the peer's rights to files and without the capabilities that
// go around them, as file servers do: setfsuid(2) is of the calling thread and
// takes CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and their like from it
// (capabilities(7), "Effect of user ID changes on capabilities"). A nil peer has
// those of the process.
func (p *Peer) do(f func() error) (err error) {
	if p == nil {
		return f()
	}
	if err := p.validate(); err != nil {
		return err
	}
	runtime.LockOSThread()
	groups, err := unix.Getgroups()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("getgroups: %w", err)
	}
	defer func() {
		if back := setFileIDs(os.Geteuid(), os.Getegid(), groups); back != nil {
			// The thread stays locked, and ends with the goroutine: it has
			// too few rights, not too many.
			err = errors.Join(err, back)
			return
		}
		runtime.UnlockOSThread()
	}()
	gids := make([]int, len(p.GIDs))
	for i, gid := range p.GIDs {
		gids[i] = int(gid)
	}
	if err := setFileIDs(int(p.UID), gids[0], gids); err != nil {
		return err
	}
	if err := lacksFileCapabilities(); err != nil {
		return err
	}
	return f()
}

// setFileIDs changes the thread, and makes sure of it: setfsuid(2) has no error.
func setFileIDs(uid, gid int, groups []int) error {
	if err := unix.Setgroups(groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	for _, set := range []struct {
		name string
		call func(int) (int, error)
		id   int
	}{{"setfsgid", unix.SetfsgidRetGid, gid}, {"setfsuid", unix.SetfsuidRetUid, uid}} {
		if _, err := set.call(set.id); err != nil {
			return fmt.Errorf("%s %d: %w", set.name, set.id, err)
		}
		if now, err := set.call(-1); err != nil || now != set.id {
			return fmt.Errorf("%s %d: it is %d: %w", set.name, set.id, now, errors.Join(unix.EPERM, err))
		}
	}
	return nil
}

// lacksFileCapabilities refuses a process whose securebits let it keep them.
func lacksFileCapabilities() error {
	const fileCapabilities = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	if data[0].Effective&fileCapabilities != 0 {
		return errors.New("this process keeps the right to every file when it takes another user's (SECBIT_NO_SETUID_FIXUP): start it without that")
	}
	return nil
}
