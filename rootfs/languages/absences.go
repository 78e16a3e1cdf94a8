package languages

import (
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Absences remember which programs the directories of PATH do not have. Each new entry changes the time of
// its directory. So a directory with the same time still lacks the same programs. The zero value
// remembers nothing yet. It is safe for concurrent use.
type Absences struct {
	mu   sync.Mutex
	dirs map[dirID]lack
}

// A dirID is a directory in a mount. After an unmount the kernel can give the device number to another file
// system, but never the unique number of the mount (statx(2), Linux 6.8).
type dirID struct{ mount, inode uint64 }

// A lack has the names that a directory did not have at this time of its last change. No lack is changed:
// [Absences.learn] replaces it.
type lack struct {
	changed unix.StatxTimestamp
	names   map[string]bool
}

const (
	// settled is the age of a change after which each later change has another time, also on a file
	// system that counts whole seconds.
	settled = 2 * time.Second
	// mostDirs bounds the directories that are remembered.
	mostDirs = 1000
)

// timedTypes are the file systems on a block device that change the time of a directory with each new entry. An
// overlay is none of them: a directory has the time of one layer, and the other layers can change.
var timedTypes = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC}

// recall completes an open directory with the names that the directory is known to lack.
func (a *Absences) recall(d *pathDir) {
	const wanted = unix.STATX_CTIME | unix.STATX_INO | unix.STATX_MNT_ID_UNIQUE
	var st unix.Statx_t
	if a == nil || !d.exists() || unix.Statx(d.fd, "", unix.AT_EMPTY_PATH, wanted, &st) != nil {
		return
	}
	// An encrypted directory gets its names when it gets its key, without a new time. A file system without a
	// block device, such as FUSE, may not answer fstatfs.
	if st.Mask&wanted != wanted || st.Attributes&unix.STATX_ATTR_ENCRYPTED != 0 || st.Dev_major == 0 {
		return
	}
	d.id, d.changed = dirID{st.Mnt_id, st.Ino}, st.Ctime
	a.mu.Lock()
	known, ok := a.dirs[d.id]
	a.mu.Unlock()
	if ok && known.changed == st.Ctime {
		d.lacks, d.remembers = known.names, true
		return
	}
	var fs unix.Statfs_t
	d.remembers = time.Since(time.Unix(st.Ctime.Sec, int64(st.Ctime.Nsec))) >= settled &&
		unix.Fstatfs(d.fd, &fs) == nil && slices.Contains(timedTypes, fs.Type)
}

// learn remembers the names that the directory did not have since the recall.
func (a *Absences) learn(d *pathDir) {
	if len(d.missed) == 0 {
		return
	}
	names := map[string]bool{}
	maps.Copy(names, d.lacks)
	for _, name := range d.missed {
		names[name] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dirs == nil || len(a.dirs) >= mostDirs {
		a.dirs = map[dirID]lack{}
	}
	a.dirs[d.id] = lack{d.changed, names}
}
