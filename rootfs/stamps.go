package rootfs

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// Stamps tell whether a root that was prepared earlier still shows the host as it is now. They
// have the identity and the time of the last change of each file of the host that the plan of the
// root depends on, also of those that were missing.
type Stamps struct {
	host   *HostMounts
	files  []stamp
	mounts string
	// asOf is the last table of mounts that had these mounts.
	asOf uint64
}

type stamp struct {
	path string
	// link is the path itself, and file the end of the symbolic links.
	link, file fileState
}

// A fileState is zero for a missing file.
type fileState struct {
	device, inode uint64
	changed       unix.Timespec
}

func stateOf(st *unix.Stat_t, err error) fileState {
	if err != nil {
		return fileState{}
	}
	return fileState{st.Dev, st.Ino, st.Ctim}
}

func newStamp(name string) stamp {
	var st unix.Stat_t
	s := stamp{path: name, link: stateOf(&st, unix.Lstat(name, &st))}
	s.file = s.link
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		s.file = stateOf(&st, unix.Stat(name, &st))
	}
	return s
}

// add stamps a path, before the plan looks at the path. Nil stamps collect nothing.
func (s *Stamps) add(name string) {
	if s != nil {
		s.files = append(s.files, newStamp(name))
	}
}

// addPattern stamps all that a pattern of [glob.Find] below a directory depends on.
func (s *Stamps) addPattern(dir, pattern string) error {
	if s == nil {
		return nil
	}
	for ; pattern != "." && pattern != "/"; pattern = path.Dir(pattern) {
		if !strings.ContainsAny(pattern, "*[") {
			s.add(path.Join(dir, pattern))
			continue
		}
		found, err := descriptor.Glob(dir, pattern)
		if err != nil {
			return err
		}
		for _, name := range found {
			s.add(name)
		}
	}
	return nil
}

// Stamps returns the stamps of a root whose Config has HostMounts.
func (r *Root) Stamps() Stamps {
	if r.plan.stamps == nil {
		return Stamps{}
	}
	return *r.plan.stamps
}

// Changed returns the first path of the host that has changed. It is empty if there is none: a
// root that is prepared now would be the same. The caller must not call it concurrently.
func (s *Stamps) Changed() (string, error) {
	for _, f := range s.files {
		if newStamp(f.path) != f {
			return f.path, nil
		}
	}
	now, err := s.host.current()
	if err != nil || now.number == s.asOf {
		return "", err
	}
	if s.describeMounts(now.all) != s.mounts {
		return "the mounts of the host", nil
	}
	s.asOf = now.number
	return "", nil
}

// noteMounts completes the stamps with the mounts of the host at and below their paths. Equal stamps of
// two roots take the memory of one.
func (s *Stamps) noteMounts() error {
	now, err := s.host.current()
	if err != nil {
		return err
	}
	s.mounts, s.asOf = s.describeMounts(now.all), now.number
	s.files = s.host.shared(fewest(s.files))
	return nil
}

// fewest returns the stamps, sorted by path, without those that tell nothing more: a second equal stamp, and
// the stamp of a missing file below a missing directory.
func fewest(all []stamp) (some []stamp) {
	slices.SortStableFunc(all, func(a, b stamp) int { return strings.Compare(a.path, b.path) })
	missing := map[string]bool{}
	for _, s := range slices.Compact(all) {
		gone := s.link == fileState{}
		if gone && missing[path.Dir(s.path)] {
			missing[s.path] = true
			continue
		}
		missing[s.path] = gone
		some = append(some, s)
	}
	return some
}

// describeMounts describes the mounts at and below the stamped paths. After an unmount the kernel can
// reuse the id of the mount. The kernel does not reuse the device number while a sandbox shows the file
// system. So the description has both.
func (s Stamps) describeMounts(all []*mountinfo.Info) string {
	var text strings.Builder
	for _, m := range all {
		if m.Mountpoint != "/" && slices.ContainsFunc(s.files, func(f stamp) bool {
			return f.path != "/" && hostpaths.Within(m.Mountpoint, f.path)
		}) {
			fmt.Fprintf(&text, "%d %d:%d %s %s %s\n", m.ID, m.Major, m.Minor, m.Mountpoint, m.Root, m.Options)
		}
	}
	return text.String()
}

// HostMounts are the mounts of this process's mount namespace. The zero value can be used, by
// several goroutines. It must be closed.
type HostMounts struct {
	mu    sync.Mutex
	file  *os.File
	last  hostTable
	files []stamp // of the last root
}

// A hostTable has no mounts before the first read, and after a failed read.
type hostTable struct {
	number uint64 // another one after each read
	all    []*mountinfo.Info
}

// current returns the mounts. It reads them anew only if a mount has changed.
func (h *HostMounts) current() (hostTable, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.file == nil {
		// A file of os.Open would be polled by the Go runtime, too, and lose changes to it.
		fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return hostTable{}, os.NewSyscallError("open /proc/self/mountinfo", err)
		}
		h.file = os.NewFile(uintptr(fd), "/proc/self/mountinfo")
	}
	changed, err := mountsChanged(int32(h.file.Fd()))
	if err != nil {
		return hostTable{}, err
	}
	if !changed && h.last.all != nil {
		return h.last, nil
	}
	h.last.all = nil // the kernel reports a change once, and the read can fail
	if _, err := h.file.Seek(0, 0); err != nil {
		return hostTable{}, err
	}
	all, err := mountinfo.GetMountsFromReader(h.file, nil)
	if err != nil {
		return hostTable{}, err
	}
	h.last = hostTable{h.last.number + 1, all}
	return h.last, nil
}

// shared returns the stamps of the last root if these are equal.
func (h *HostMounts) shared(files []stamp) []stamp {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.files, files) {
		h.files = files
	}
	return h.files
}

// Close closes the file with the mounts.
func (h *HostMounts) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.file != nil {
		h.file.Close()
		h.file, h.last.all = nil, nil
	}
}

// mountsChanged says whether a mount has changed since the last call: proc(5), mounts.
func mountsChanged(fd int32) (bool, error) {
	fds := []unix.PollFd{{Fd: fd, Events: unix.POLLPRI}}
	_, err := descriptor.Retry(func() (int, error) { return unix.Poll(fds, 0) })
	return fds[0].Revents != 0, err
}
