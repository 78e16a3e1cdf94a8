package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// users names the processes of the sandbox that have their directory, or an open file, in
// the old mounts. The processes are paused.
func (s *switching) users() (all []string, err error) {
	mounts := map[uint64]*cover{}
	for _, c := range s.covers {
		if id, err := mountID(int(c.live.Fd()), "", unix.AT_EMPTY_PATH); err == nil {
			mounts[id] = c
		}
	}
	pids, err := s.files.Group.Procs()
	if err != nil {
		return nil, fmt.Errorf("list the sandbox's processes: %w", err)
	}
	for _, pid := range pids {
		if where := userOf(pid, mounts); where != "" {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			all = append(all, fmt.Sprintf("process %d (%s) has %s", pid, strings.TrimSpace(string(name)), where))
		}
	}
	slices.Sort(all)
	return all, nil
}

// userOf names the part of one of the mounts that a process uses, if any.
func userOf(pid int, mounts map[uint64]*cover) string {
	proc := "/proc/" + strconv.Itoa(pid)
	if id, err := mountID(unix.AT_FDCWD, proc+"/cwd", 0); err == nil && mounts[id] != nil && !mounts[id].moves(proc+"/cwd") {
		at, _ := os.Readlink(proc + "/cwd")
		return "its directory in " + at
	}
	if id, err := mountID(unix.AT_FDCWD, proc+"/root", 0); err == nil && mounts[id] != nil && !mounts[id].moves(proc+"/root") {
		return "its root there"
	}
	files, err := filepath.Glob(proc + "/fd/*")
	if err != nil {
		return ""
	}
	for _, file := range files {
		if id, err := mountID(unix.AT_FDCWD, file, 0); err == nil && mounts[id] != nil {
			at, _ := os.Readlink(file)
			return at + " open"
		}
	}
	return ""
}

// moves says that a directory of a process is the root directory. pivot_root gives such a process the new root.
func (c *cover) moves(dir string) bool {
	var root, st unix.Stat_t
	return c.isRoot() && unix.Fstat(int(c.live.Fd()), &root) == nil && unix.Stat(dir, &st) == nil && st.Dev == root.Dev && st.Ino == root.Ino
}

// mountID is the number of the mount that something is on.
func mountID(dir int, path string, flags int) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(dir, path, flags|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID == 0 {
		err = errors.Join(fs.ErrInvalid, errors.ErrUnsupported)
	}
	return st.Mnt_id, err
}
