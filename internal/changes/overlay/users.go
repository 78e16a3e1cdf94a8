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

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
)

// users names the processes of the sandbox that have their directory, or an open file, in
// the old mounts. The processes are paused.
func (s *layerSwitch) users() (all []string, err error) {
	mounts := map[uint64]*cover{}
	for _, c := range s.covers {
		if id, err := mountID(int(c.live.Fd()), "", unix.AT_EMPTY_PATH); err == nil {
			mounts[id] = c
		}
	}
	return usersIn(s.files.Group, "has ", func(thread string) (string, error) { return threadUses(thread, mounts) })
}

// usersIn describes the processes of a group that use something. uses names the used place: see firstUse. The verb stands
// before the place.
func usersIn(group *cgroups.Group, verb string, uses func(thread string) (string, error)) (all []string, err error) {
	pids, err := group.Procs()
	if err != nil {
		return nil, fmt.Errorf("list the sandbox's processes: %w", err)
	}
	for _, pid := range pids {
		where, err := firstUse(pid, uses)
		if err != nil {
			return nil, fmt.Errorf("list the files of process %d: %w", pid, err)
		}
		if where != "" {
			all = append(all, fmt.Sprintf("process %d (%s) %s%s", pid, nameOf(pid), verb, where))
		}
	}
	slices.Sort(all)
	return all, nil
}

// nameOf is the name of a process. The sandbox chooses the name.
func nameOf(pid int) string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // it can have ended
	return streams.Visible(strings.TrimSuffix(string(name), "\n"))
}

// firstUse calls uses with the directories of procfs of a process's threads, until one has an answer. A thread can
// have files and a directory of its own (CLONE_FILES and CLONE_FS of clone(2)). An ended main thread has none, and
// no memory either. The directories are those in /proc itself: the ones in task have no map_files.
func firstUse(pid int, uses func(thread string) (string, error)) (string, error) {
	threads, err := descriptor.Glob("/proc/"+strconv.Itoa(pid)+"/task", "*")
	if err != nil {
		return "", err
	}
	first := 0
	for _, thread := range threads {
		tid, err := strconv.Atoi(filepath.Base(thread))
		if err != nil || first != 0 && shares(first, tid) {
			continue
		}
		if where, err := uses("/proc/" + filepath.Base(thread)); where != "" || err != nil {
			return where, err
		}
		if first == 0 {
			first = tid
		}
	}
	return "", nil
}

// shares says that two threads share their directories and open files. It is false if the kernel cannot tell
// (kcmp(2), CONFIG_KCMP).
func shares(one, other int) bool {
	const files, directories = 2, 3 // linux/kcmp.h
	for _, kind := range []uintptr{files, directories} {
		order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(one), uintptr(other), kind, 0, 0, 0)
		if errno != 0 || order != 0 {
			return false
		}
	}
	return true
}

// threadUses names the part of one of the mounts that a thread uses, if any. proc is the thread's directory
// of procfs.
func threadUses(proc string, mounts map[uint64]*cover) (string, error) {
	if id, err := mountID(unix.AT_FDCWD, proc+"/cwd", 0); err == nil && mounts[id] != nil && !mounts[id].moves(proc+"/cwd") {
		at, _ := os.Readlink(proc + "/cwd")
		return "its directory in " + streams.Visible(at), nil
	}
	if id, err := mountID(unix.AT_FDCWD, proc+"/root", 0); err == nil && mounts[id] != nil && !mounts[id].moves(proc+"/root") {
		return "its root there", nil
	}
	files, err := descriptor.Glob(proc, "fd/*")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		if id, err := mountID(unix.AT_FDCWD, file, 0); err == nil && mounts[id] != nil {
			at, _ := os.Readlink(file)
			return streams.Visible(at) + " open", nil
		}
	}
	return "", nil
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
