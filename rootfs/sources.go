package rootfs

import (
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/stamps"
)

// sources are the opened sources of a plan, with all that decides whether a further one is opened.
type sources struct {
	rules  *hostpaths.Rules
	files  map[string]*os.File // that came with the configuration
	peer   *Peer
	stamps *stamps.Collector // nil: the sources collect none
	all    []*source
}

func (ss *sources) add(s *source) { ss.all = append(ss.all, s) }

func (ss *sources) close() {
	for _, s := range ss.all {
		s.close()
	}
}

// open is openSource for a part of the host that is not written to, and that the sources close.
func (ss *sources) open(name string) (*source, error) {
	ss.stamps.Add(name)
	s, err := openSource(name, false, asNobody, ss.rules)
	if err == nil {
		ss.add(s)
	}
	return s, err
}

// openNamed opens a source that the user named: by the descriptor that came with it, or
// else, for a caller that may see everything, by its path.
func (ss *sources) openNamed(r *hostpaths.Rules, name string, writable bool, as ownerView) (s *source, err error) {
	file := ss.files[name]
	switch {
	case file == nil && ss.peer != nil:
		return nil, fmt.Errorf("%s: no descriptor came with it", name)
	case !path.IsAbs(name):
		return nil, fmt.Errorf("%q: must be an absolute path", name)
	case file == nil:
		s, err = openSource(name, writable, as, r)
	default:
		s, err = heldSource(name, file, writable, as, r, ss.peer)
	}
	if err == nil {
		ss.add(s)
	}
	return s, err
}

// openPrefix opens a language prefix. A peer may have put it into the configuration, so
// the peer has to be able to list it, and the whole path is looked up with the peer's
// rights.
func (ss *sources) openPrefix(name string) (*source, error) {
	if ss.peer == nil {
		return ss.open(name)
	}
	ss.stamps.Add(name)
	if !path.IsAbs(name) {
		return nil, fmt.Errorf("%q: must be an absolute path", name)
	}
	fd := -1
	err := ss.peer.withRights(func() (err error) {
		fd, err = descriptor.Open(unix.AT_FDCWD, name, descriptor.NoMagicLinks, unix.O_RDONLY|unix.O_DIRECTORY)
		return err
	})
	if err != nil {
		return nil, openError(name, false, err)
	}
	s, err := newSource(name, fd, false, asNobody, ss.rules)
	if err == nil {
		s.peer = ss.peer
		ss.add(s)
	}
	return s, err
}
