package rootfs

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/languages"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/rights"
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
		return s.forbidden(fmt.Sprintf("belongs to user %d, and only that user and root may have it written to", s.uid))
	default:
		s.shown, s.foreign = asNobody, true
	}
	return nil
}

// withRights runs f with the peer's rights to files. A nil peer has those of the process.
func (p *Peer) withRights(f func() error) error {
	if p == nil {
		return f()
	}
	if err := p.validate(); err != nil {
		return err
	}
	return rights.With(p.UID, p.GIDs, f)
}
