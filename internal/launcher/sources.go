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

// Sources identify a client, and hold the files that the client has opened itself, by
// their paths in the configuration.
type Sources struct {
	// Files stay the caller's. A path without one is opened by the launcher, if
	// the client is root or this process's own user; of anybody else each has to
	// have one, opened for reading.
	Files map[string]*os.File
	// UID is the client's user, and GIDs are its groups, the primary one first; root and
	// this process's own user need not name groups. [rootfs.Peer] says what other users
	// are shown.
	UID  uint32
	GIDs []uint32
}

// peer is the client, if the client has fewer rights than this process.
func (s Sources) peer() *rootfs.Peer {
	if s.UID == 0 || int(s.UID) == os.Geteuid() {
		return nil
	}
	return &rootfs.Peer{UID: s.UID, GIDs: s.GIDs}
}

// stat describes the file that came for a path, or else the path.
func (s Sources) stat(path string) (st unix.Stat_t, err error) {
	if file := s.Files[path]; file != nil {
		return st, unix.Fstat(int(file.Fd()), &st)
	}
	return st, unix.Stat(path, &st)
}

// limited says that the file that came for a path, or the path, has a quota, and so has
// each file system that is mounted below.
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
