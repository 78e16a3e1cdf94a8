package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"golang.org/x/sys/unix"
)

// LimitDirectory bounds the content of a directory of the host. The directory has to be
// empty, unless it was limited before: then it gets other limits. They count the files
// that any user makes below it from now on. They last as long as the directory.
//
// It is a project quota, ext4's or XFS's, and needs root: errors.ErrUnsupported if the
// file system has none, or does not enforce them, and in a directory that shares one
// already. Nothing inside a user namespace changes the project of a file.
func LimitDirectory(dir *os.File, l Limits) error {
	if err := l.check(); err != nil {
		return err
	}
	if err := limitDirectory(dir, l); err != nil {
		return fmt.Errorf("limit %s to %d bytes and %d files: %w", dir.Name(), l.Bytes, l.Files, err)
	}
	return nil
}

func limitDirectory(dir *os.File, l Limits) error {
	if err := quotasEnforced(dir); err != nil {
		return err
	}
	attributes, err := getAttributes(dir)
	if err != nil {
		return err
	}
	if attributes.inherited() {
		if err := ownProject(dir, attributes.project); err != nil {
			return err
		}
		return setQuota(dir, attributes.project, l)
	}
	if err := empty(dir); err != nil {
		return err
	}
	project, err := freeProject(dir)
	if err != nil {
		return err
	}
	// The limit first: nothing is ever made without it.
	if err := setQuota(dir, project, l); err != nil {
		return err
	}
	attributes.flags |= inheritProject
	attributes.project = project
	return setAttributes(dir, attributes)
}

// ownProject refuses a directory that has its project from the one it is in: other
// limits would be that one's.
func ownProject(dir *os.File, project uint32) error {
	parent, err := descriptor.OpenFile(int(dir.Fd()), "..", descriptor.NoMagicLinks, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer parent.Close()
	if a, err := getAttributes(parent); err != nil || a.project != project {
		return nil // it is on another file system, or has another project
	}
	return &UnsupportedError{fmt.Sprintf("it shares project %d with the directory that it is in", project), "limit that one, or take its project away (chattr -P -p 0)"}
}

// empty refuses a directory with files that would not be counted.
func empty(dir *os.File) error {
	again, err := descriptor.OpenFile(int(dir.Fd()), ".", descriptor.NoMagicLinks, unix.O_RDONLY|unix.O_DIRECTORY) // from the beginning
	if err != nil {
		return err
	}
	defer again.Close()
	names, err := again.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("it has %s, which would not be counted: limit it while it is empty", names[0])
	}
	return err
}

// IsLimited says whether a project quota bounds the bytes and the files of a directory, or
// the bytes of a file. It needs root.
func IsLimited(f *os.File) bool {
	if quotasEnforced(f) != nil {
		return false
	}
	a, err := getAttributes(f)
	if err != nil || a.project == 0 {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.IsDir() && !a.inherited() {
		return false
	}
	var q quota
	err = quotactl(f, getQuota, a.project, unsafe.Pointer(&q))
	return err == nil && q.blocks > 0 && q.files > 0
}

// fileAttributes are struct fsxattr of FS_IOC_FSSETXATTR: ioctl_xfs_fsgetxattr(2).
type fileAttributes struct {
	flags, extentSize, extents, project, copyExtentSize uint32
	_                                                   [8]byte
}

// inherited says that new files below have the project, too.
func (a fileAttributes) inherited() bool { return a.flags&inheritProject != 0 && a.project != 0 }

const (
	getAttributesCall = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributesCall = 0x401c5820 // FS_IOC_FSSETXATTR
	inheritProject    = 0x200      // FS_XFLAG_PROJINHERIT
)

func getAttributes(f *os.File) (a fileAttributes, err error) {
	return a, attributesCall(f, getAttributesCall, &a)
}

func setAttributes(f *os.File, a fileAttributes) error {
	return attributesCall(f, setAttributesCall, &a)
}

func attributesCall(f *os.File, call uintptr, a *fileAttributes) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), call, uintptr(unsafe.Pointer(a)))
	switch errno {
	case 0:
		return nil
	case unix.ENOTTY, unix.EOPNOTSUPP:
		return noQuota("its file system has no projects")
	}
	return os.NewSyscallError("ioctl FS_IOC_FSSETXATTR", errno)
}

func noQuota(why string) error {
	return &UnsupportedError{why, "use ext4 with the features project and quota, or XFS, mounted with prjquota"}
}

// A quota is struct if_dqblk of quotactl(2): bytes in blocks of 1 KiB.
type quota struct {
	blocks, softBlocks, bytes uint64
	files, softFiles, inodes  uint64
	blockTime, fileTime       uint64
	valid                     uint32
	_                         uint32
}

const (
	projectQuota   = 2
	quotaLimits    = 1 | 4       // QIF_BLIMITS, QIF_ILIMITS
	quotaBlock     = 1 << 10     // QIF_DQBLKSIZE
	getState       = 'X'<<8 | 5  // Q_XGETQSTAT
	getQuota       = 0x800007    // Q_GETQUOTA
	setQuotaCall   = 0x800008    // Q_SETQUOTA
	projectsLimits = 1<<4 | 1<<5 // FS_QUOTA_PDQ_ACCT, FS_QUOTA_PDQ_ENFD
)

// quotactl is quotactl_fd(2), Linux 5.14.
func quotactl(f *os.File, command, id uint32, data unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), uintptr(command<<8|projectQuota), uintptr(id), uintptr(data), 0, 0)
	switch errno {
	case 0:
		return nil
	case unix.ENOSYS, unix.ESRCH, unix.EOPNOTSUPP, unix.ENOTBLK, unix.ENODEV, unix.EINVAL:
		return noQuota("its file system has no project quotas")
	case unix.EPERM:
		return &UnsupportedError{"quotas are root's to set", "run it as root"}
	}
	return os.NewSyscallError("quotactl_fd", errno)
}

// quotasEnforced refuses quotas that are counted only.
func quotasEnforced(f *os.File) error {
	var state [256]byte // struct fs_quota_stat, of 80 bytes
	if err := quotactl(f, getState, 0, unsafe.Pointer(&state)); err != nil {
		return err
	}
	if flags := binary.NativeEndian.Uint16(state[2:]); flags&projectsLimits != projectsLimits {
		return noQuota("its file system does not enforce project quotas")
	}
	return nil
}

// freeProject is one that nobody uses: that of the directory's inode number, far
// from those that administrators take, or, where somebody has it, another.
func freeProject(dir *os.File) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	for try := range uint64(1000) {
		project := 1<<31 | uint32(st.Ino+try*7919)&^(1<<31)
		var q quota
		if err := quotactl(dir, getQuota, project, unsafe.Pointer(&q)); err != nil {
			return 0, err
		}
		if q.bytes == 0 && q.inodes == 0 {
			return project, nil
		}
	}
	return 0, errors.New("no project id is free")
}

func setQuota(f *os.File, project uint32, l Limits) error {
	q := quota{blocks: (uint64(l.Bytes) + quotaBlock - 1) / quotaBlock, files: uint64(l.Files), valid: quotaLimits}
	return quotactl(f, setQuotaCall, project, unsafe.Pointer(&q))
}
