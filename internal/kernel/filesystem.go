package kernel

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// scratch is where a probe mounts things in a mount namespace of its own: a
// directory that is there wherever namespaces can be given ids.
const scratch = "/proc"

var atCwd = num(unix.AT_FDCWD)

// privateMounts begins a script for a new mount namespace: its mounts must not propagate
// to the caller's.
func privateMounts(s *script) {
	s.call("make mounts private", unix.SYS_MOUNT, num(0), s.text("/"), num(0), num(unix.MS_REC|unix.MS_PRIVATE), num(0))
}

// detachedTmpfs adds the calls that make a tmpfs that is mounted nowhere.
func detachedTmpfs(s *script) arg {
	fs := s.call("fsopen tmpfs", unix.SYS_FSOPEN, s.text("tmpfs"), num(unix.FSOPEN_CLOEXEC))
	s.call("fsconfig tmpfs", unix.SYS_FSCONFIG, fs, num(unix.FSCONFIG_CMD_CREATE), num(0), num(0), num(0))
	return s.call("fsmount tmpfs", unix.SYS_FSMOUNT, fs, num(unix.FSMOUNT_CLOEXEC), num(0))
}

func tryMountAPI(s *script) {
	privateMounts(s)
	tree := detachedTmpfs(s)
	s.call("move_mount", unix.SYS_MOVE_MOUNT, tree, s.text(""), atCwd, s.text(scratch), num(unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// mountAttr is struct mount_attr of mount_setattr(2).
func mountAttr(s *script, set uint64, userNamespace uint64) arg {
	return s.words(set, 0, 0, userNamespace)
}

const mountAttrSize = unix.MOUNT_ATTR_SIZE_VER0

func tryMountAttributes(s *script) {
	tree := s.call("open_tree", unix.SYS_OPEN_TREE, atCwd, s.text(scratch),
		num(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE))
	readOnly := mountAttr(s, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, 0)
	s.call("mount_setattr", unix.SYS_MOUNT_SETATTR, tree, s.text(""),
		num(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE), readOnly, num(mountAttrSize))
}

// probeIDMappedMounts asks whether the kernel has them at all: on a tmpfs of
// its own, or else on one of the paths a sandbox would show.
func probeIDMappedMounts(p *prober) (string, error) {
	if _, err := probeIDMappedTmpfs(p); err == nil {
		return "", nil
	}
	var last error
	for _, path := range []string{"/usr", ".", os.TempDir()} {
		if last = idMap(p, path); last == nil {
			return "", nil
		}
	}
	return "", last
}

func probeIDMappedTmpfs(p *prober) (string, error) {
	return "", idMapTree(p, detachedTmpfs)
}

// idMap tries to give the mount that holds path other ids, on a detached copy. In a user namespace the kernel copies
// a directory only together with the mounts below it.
func idMap(p *prober, path string) error {
	return idMapTree(p, func(s *script) arg {
		return s.call("open_tree "+path, unix.SYS_OPEN_TREE, atCwd, s.text(path),
			num(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE))
	})
}

const idMapCall = "mount_setattr with other ids"

func idMapTree(p *prober, open func(*script) arg) error {
	namespace, err := userNamespace(mapSelf)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoUserNamespace, err)
	}
	defer namespace.Close()
	s := newScript()
	defer s.free()
	tree := open(s)
	s.call(idMapCall, unix.SYS_MOUNT_SETATTR, tree, s.text(""), num(unix.AT_EMPTY_PATH),
		mountAttr(s, unix.MOUNT_ATTR_IDMAP, uint64(namespace.Fd())), num(mountAttrSize))
	return p.run(s, unix.CLONE_NEWNS)
}

// A Path is a place whose files a sandbox may be shown.
type Path struct {
	Path       string
	Filesystem string // its type, "ext4"; "unknown" if that can't be told
	// IDMapped is nil if mounts of it can be given other ids.
	IDMapped error
}

// IDMappedPaths tries which of the paths' file systems can be mounted with
// other ids (MOUNT_ATTR_IDMAP of mount_setattr(2), Linux 5.12; by then ext4,
// xfs and FAT, others later).
func IDMappedPaths(paths ...string) []Path {
	p := newProber()
	var found []Path
	for _, path := range paths {
		found = append(found, Path{Path: path, Filesystem: filesystem(path), IDMapped: explainIDMap(idMap(p, path))})
	}
	return found
}

// explainIDMap words the error numbers.
func explainIDMap(err error) error {
	var failed *callError
	switch {
	case !errors.As(err, &failed) || failed.call != idMapCall:
		return err
	case errors.Is(err, syscall.EINVAL):
		return fmt.Errorf("this kernel cannot map the ids of this file system: %w", err)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("only root of the file system's owner may: %w", err)
	default:
		return err
	}
}

func filesystem(path string) string {
	const unknown = "unknown"
	var st unix.Statx_t // the mount is told from Linux 5.8 on
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st); err != nil {
		return unknown
	}
	id := int(st.Mnt_id)
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.ID != id, m.ID == id })
	if err != nil || len(mounts) != 1 {
		return unknown
	}
	return mounts[0].FSType
}

// overlayOptions are those that every overlay of a sandbox is mounted with.
const overlayOptions = "lowerdir=" + scratch + "/l,upperdir=" + scratch + "/u,workdir=" + scratch + "/w," +
	"redirect_dir=nofollow,metacopy=off,index=off"

func tryOverlay(options string) func(*script) {
	return func(s *script) {
		privateMounts(s)
		s.call("mount tmpfs", unix.SYS_MOUNT, s.text("tmpfs"), s.text(scratch), s.text("tmpfs"), num(0), num(0))
		for _, dir := range []string{"/l", "/u", "/w", "/m"} {
			s.call("mkdirat", unix.SYS_MKDIRAT, atCwd, s.text(scratch+dir), num(0o700))
		}
		s.call("mount overlay", unix.SYS_MOUNT, s.text("overlay"), s.text(scratch+"/m"), s.text("overlay"), num(0), s.text(options))
	}
}

// probeHostOverlay makes the overlay that shows the host's /usr with other inodes. An overlay
// shows no mounts below.
func probeHostOverlay(p *prober) (string, error) {
	err := runScript(func(s *script) {
		privateMounts(s)
		s.call("mount tmpfs", unix.SYS_MOUNT, s.text("tmpfs"), s.text(scratch), s.text("tmpfs"), num(0), num(0))
		s.call("mount overlay", unix.SYS_MOUNT, s.text("overlay"), s.text(scratch), s.text("overlay"), num(unix.MS_RDONLY),
			s.text("lowerdir=/usr:"+scratch+",redirect_dir=nofollow,metacopy=off,index=off"))
	}, func(s *script) error { return p.run(s, unix.CLONE_NEWNS) })
	if err != nil {
		return "", err
	}
	below, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, "/usr/"), false
	})
	if err != nil || len(below) == 0 {
		return "", err
	}
	return "", &absentError{"a file system is mounted on " + below[0].Mountpoint, "unmount " + below[0].Mountpoint}
}

// tryProcfs mounts a /proc as a sandbox gets one. The kernel refuses it where
// parts of the /proc in sight are covered, fs/namespace.c:mount_too_revealing().
func tryProcfs(s *script) {
	privateMounts(s)
	s.call("mount proc", unix.SYS_MOUNT, s.text("proc"), s.text(scratch), s.text("proc"),
		num(unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC), num(0))
}

func probeFileEvents(*prober) (string, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_DFID_NAME_TARGET|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err != nil {
		return "", fmt.Errorf("fanotify_init: %w", err)
	}
	return "", unix.Close(fd)
}

func tryOpenat2(s *script) {
	how := s.words(unix.O_PATH|unix.O_CLOEXEC, 0, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	s.call("openat2", unix.SYS_OPENAT2, atCwd, s.text("/"), how, num(unix.SizeofOpenHow))
}
