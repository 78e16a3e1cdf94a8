package part

import (
	"fmt"
	"os"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
)

// Sources identify a client, and hold the files that the client has opened itself, by
// their paths in the configuration.
type Sources struct {
	// The caller must close the Files. For root and for this process's own user, the launcher
	// opens a path without a file. For another client each path must have a file, opened for
	// reading.
	Files map[string]*os.File
	// UID is the client's user, and GIDs are its groups, the primary one first; root and
	// this process's own user need not name groups. [rootfs.Peer] describes the files that other
	// users can show a sandbox.
	UID  uint32
	GIDs []uint32
	// Blanks is the most that a pool keeps for this user. Nil: the default of [Launcher.StartPool].
	Blanks *int
}

// Peer is the client, if the client has fewer rights than this process.
func (s Sources) Peer() *rootfs.Peer {
	if s.UID == 0 || int(s.UID) == os.Geteuid() {
		return nil
	}
	return &rootfs.Peer{UID: s.UID, GIDs: s.GIDs}
}

// stat describes the client's file for a path, or the path if there is no such file.
func (s Sources) stat(path string) (st unix.Stat_t, err error) {
	if file := s.Files[path]; file != nil {
		return st, unix.Fstat(int(file.Fd()), &st)
	}
	return st, unix.Stat(path, &st)
}

// limited says whether a path has a quota, by the client's file if there is one. It is false if
// another file system is mounted below the path, and for a client's path without a file.
func (s Sources) limited(path string) bool {
	file := s.Files[path]
	if file == nil && s.Peer() != nil {
		return false // the path may lead to a file that the client may not see
	}
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
		return false // do not open a FIFO: the open would wait for a process at the other end
	}
	held := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	opened, err := os.Open(held)
	if err != nil {
		return false
	}
	defer opened.Close()
	return store.IsLimited(opened) && !mountedBelow(held)
}

// mountedBelow says whether other file systems are mounted below a directory.
func mountedBelow(held string) bool {
	dir, err := os.Readlink(held)
	if err != nil {
		return true
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	return err != nil || slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool { return m.Mountpoint != dir })
}
