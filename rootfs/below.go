package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"golang.org/x/sys/unix"
)

// mountTable is the mounts of the calling thread's namespace, read at the first use: on a
// host with many containers that is not cheap, and only trees that cannot be idmapped need
// it.
type mountTable struct {
	all []*mountinfo.Info
}

// mounts are the file systems of a tree: the one it lies on, and those mounted
// below.
type mounts struct {
	fsType string
	below  []*mountinfo.Info
}

// checkedMountsOf is mountsOf, and refuses a tree with one of the kernel's own file systems in it.
// None of those can be idmapped, so each tree that should be is found here, and
// the others are brought here.
func (t *mountTable) checkedMountsOf(s *source) (m mounts, err error) {
	if m, err = t.mountsOf(s); err != nil {
		return m, err
	}
	for _, i := range m.below {
		if kernelViewType(i.FSType) {
			return m, s.forbidden(fmt.Sprintf("has a %s file system mounted below, at %s, which shows the host's kernel; unmount it", i.FSType, i.Mountpoint))
		}
	}
	return m, nil
}

// mountsOf returns the mounts above and below a source.
func (t *mountTable) mountsOf(s *source) (m mounts, err error) {
	if t.all == nil {
		if t.all, err = mountinfo.GetMounts(nil); err != nil {
			return m, fmt.Errorf("list mounts: %w", err)
		}
	}
	resolved, err := pathOf(s.fd)
	if err != nil {
		return m, fmt.Errorf("resolve %s: %w", s.path, err)
	}
	longest := -1
	for _, i := range t.all {
		switch at := i.Mountpoint; {
		case at != resolved && hostpaths.Within(at, resolved):
			m.below = append(m.below, i)
		case hostpaths.Within(resolved, at) && len(at) >= longest:
			longest, m.fsType = len(at), i.FSType
		}
	}
	return m, nil
}

// refuseMixed finds out, for a writable tree that could not be idmapped, whether
// something mounted below it is the reason. Then the error names that: half a
// tree with other owners would surprise.
func (s *source) refuseMixed(m mounts, space int) error {
	if len(m.below) == 0 || !idmappable(s.fd, space) {
		return nil
	}
	var bad []string
	for _, i := range m.below {
		fd, err := unix.Open(i.Mountpoint, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open the mount on %s: %w", i.Mountpoint, err)
		}
		if !idmappable(fd, space) {
			bad = append(bad, i.Mountpoint+" ("+i.FSType+")")
		}
		descriptor.CloseFD(fd)
	}
	return fmt.Errorf("%s can be idmapped, but the mounts below it, at %s, cannot: unmount these, or use a directory without them", s.path, strings.Join(bad, ", "))
}

// idmappable says whether a mount by itself can be idmapped.
func idmappable(fd, space int) bool {
	s := source{fd: fd, tree: -1, writable: true}
	err := s.clone(space, false)
	descriptor.CloseFD(s.tree)
	return err == nil
}
