package launcher

import (
	"fmt"
	"os"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/store"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
)

// Sources are what a client has opened itself, by the paths that its
// configuration names, and who it is.
type Sources struct {
	// Files stay the caller's. A path without one is opened by the launcher, if
	// the client is root or this process's own user; of anybody else each has to
	// have one, opened for reading.
	Files map[string]*os.File
	// UID is the client's, and GIDs are its groups, the primary one first, which
	// root and this process's own user need not name. What others are shown is
	// what [rootfs.Peer] says.
	UID  uint32
	GIDs []uint32
}

// peer is who asks, if that is somebody with fewer rights than this process.
func (s Sources) peer() *rootfs.Peer {
	if s.UID == 0 || int(s.UID) == os.Geteuid() {
		return nil
	}
	return &rootfs.Peer{UID: s.UID, GIDs: s.GIDs}
}

// stat looks at what came for a path, or else at the path.
func (s Sources) stat(path string) (st unix.Stat_t, err error) {
	if file := s.Files[path]; file != nil {
		return st, unix.Fstat(int(file.Fd()), &st)
	}
	return st, unix.Stat(path, &st)
}

// limited says whether what came for a path, or is there, has a quota, and nothing
// that is mounted below is without.
func (s Sources) limited(path string) bool {
	file := s.Files[path]
	if file == nil {
		at, err := os.OpenFile(path, unix.O_PATH, 0)
		if err != nil {
			return false
		}
		defer at.Close()
		file = at
	}
	info, err := file.Stat()
	if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return false // and it is not opened: nobody may be at the other end
	}
	held := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	opened, err := os.Open(held)
	if err != nil {
		return false
	}
	defer opened.Close()
	return store.IsLimited(opened) && !mountedBelow(held)
}

// mountedBelow says that there are other file systems below a directory.
func mountedBelow(held string) bool {
	dir, err := os.Readlink(held)
	if err != nil {
		return true
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	return err != nil || slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool { return m.Mountpoint != dir })
}
