package rootfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/languages"
)

// Peer is an ordinary user for whom a root process puts a root together. The rights of
// that process must not become the peer's: a sandbox shows its user nothing that the peer
// could not read, and lets nothing be written that the peer could not write. How that
// holds:
//
//   - The directory, the workspace and the binds are descriptors that the peer
//     opened ([Config.Files]); no path of the peer's is opened with root's
//     rights. A descriptor that was opened for reading proves that the peer, or
//     a user that passed it on to the peer, could read the file or list the
//     directory. A descriptor of O_PATH proves nothing: any user has one of /root.
//     A socket cannot be opened otherwise, so for a socket the peer's right to connect is
//     looked up, with the peer's rights.
//   - Below a source the kernel decides in the sandbox as it does outside, by the
//     ids that a file has there. The one user and the one group that are mapped
//     to the sandbox's user have to be the peer's own. If the source's owner were
//     mapped instead, the sandbox would read files of mode 0600 of that owner below
//     a directory that every user may list. A source of another owner is
//     shown with no id mapped: only the rights of others are left.
//   - The group of a source may be another one than the peer's, although the peer
//     owns the source: in a set-group-id directory a new file has a group that its
//     maker need not be in. Then the peer's own group is mapped in its place. A socket of
//     the peer's keeps its group, which no other file there has.
//   - For the same reason no ids are shown "as on disk": on disk the number of the
//     sandbox's user may belong to any user.
//   - Writes go only to sources that the peer owns, and below these to files that
//     the peer's user and group, or every user, may write to.
//   - The lookups of this package below a source, to make a mount point
//     there, have the peer's rights ([Peer.withRights]), and so have those
//     for language prefixes, whose paths come from the peer: neither the names
//     in a closed directory nor files behind one are found out.
//   - Everything is decided on the held descriptor, and that is mounted.
//
// Rights that some users have less of than all others are not carried into the sandbox: a
// file of mode 0604, or with an entry for the peer in its access control list that denies
// rights of others, is read inside as by others. The peer's paths are looked up in the
// mount namespace of this process. Do not give the launcher's socket to users that must not
// see that namespace, for example users of a container.
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

// FindLanguages is [languages.Find], for files that the peer can read.
func (p *Peer) FindLanguages(
	pathList, home string, binds []Bind, absences *languages.Absences,
) (found languages.Found, err error) {
	shown := make([]languages.Bind, len(binds))
	for i, b := range binds {
		shown[i] = languages.Bind{Source: b.Source, Target: b.Target}
	}
	err = p.withRights(func() (err error) {
		found, err = languages.Find(pathList, home, shown, absences)
		return err
	})
	return found, err
}

// limit restricts a source to the rights of the peer.
func (p *Peer) limit(s *source) error {
	switch {
	case p == nil:
	case s.uid == p.UID:
		s.shown = asUser
		if !slices.Contains(p.GIDs, s.gid) && !s.socket { // the kernel lets nobody connect if the group is not mapped
			s.gid = p.GIDs[0]
		}
	case s.writable:
		return &ForbiddenError{s.path, s.real, fmt.Sprintf("belongs to user %d, and only that user and root may have it written to", s.uid)}
	default:
		s.shown, s.foreign = asNobody, true
	}
	return nil
}

// withRights runs f with the peer's rights to files and without the capabilities that
// go around them, as file servers do: setfsuid(2) is of the calling thread and
// takes CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and their like from it
// (capabilities(7), "Effect of user ID changes on capabilities"). A nil peer has
// those of the process.
func (p *Peer) withRights(f func() error) (err error) {
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
