// Package stamps tells whether files and mounts of the host are as they were at an earlier time.
package stamps

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

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
	files  []stamp // sorted by path
	mounts string
	// asOf is the last table of mounts that had these mounts.
	asOf uint64
}

type stamp struct {
	path string
	// link is the path itself, and file the end of the symbolic links.
	link, file State
}

// A State is the identity of a file and the time of its last change. It is zero for a missing file.
type State struct {
	device, inode uint64
	changed       unix.Timespec
}

// StateOf is the state that a stat(2) has returned.
func StateOf(st *unix.Stat_t, err error) State {
	if err != nil {
		return State{}
	}
	return State{st.Dev, st.Ino, st.Ctim}
}

// Changed is the time of the last change.
func (s State) Changed() time.Time { return time.Unix(s.changed.Unix()) }

func newStamp(name string) stamp {
	var st unix.Stat_t
	s := stamp{path: name, link: StateOf(&st, unix.Lstat(name, &st))}
	s.file = s.link
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		s.file = StateOf(&st, unix.Stat(name, &st))
	}
	return s
}

// A Collector collects the stamps of a plan. A nil Collector collects nothing.
type Collector struct{ files []stamp }

// Add stamps a path. It must be called before the plan looks at the path.
func (c *Collector) Add(name string) {
	if c != nil {
		c.files = append(c.files, newStamp(name))
	}
}

// AddPattern stamps all that a pattern of [descriptor.Glob] below a directory depends on.
func (c *Collector) AddPattern(dir, pattern string) error {
	if c == nil {
		return nil
	}
	for ; pattern != "." && pattern != "/"; pattern = path.Dir(pattern) {
		if !strings.ContainsAny(pattern, "*[") {
			c.Add(path.Join(dir, pattern))
			continue
		}
		found, err := descriptor.Glob(dir, pattern)
		if err != nil {
			return err
		}
		for _, name := range found {
			c.Add(name)
		}
	}
	return nil
}

// Stamps returns the collected stamps, with the mounts of the host at and below their paths. Equal stamps of
// two roots take the memory of one.
func (c *Collector) Stamps(host *HostMounts) (Stamps, error) {
	now, err := host.current()
	if err != nil {
		return Stamps{}, err
	}
	s := Stamps{host: host, files: c.files, asOf: now.number}
	s.mounts = s.describeMounts(now.all)
	s.files = host.shared(fewest(s.files))
	return s, nil
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

// fewest returns the stamps, sorted by path, without those that tell nothing more: a second equal stamp, and
// the stamp of a missing file below a missing directory.
func fewest(all []stamp) (some []stamp) {
	slices.SortStableFunc(all, func(a, b stamp) int { return strings.Compare(a.path, b.path) })
	missing := map[string]bool{}
	for _, s := range slices.Compact(all) {
		gone := s.link == State{}
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

// Mounts returns the present mounts. The caller must not change them.
func (h *HostMounts) Mounts() ([]*mountinfo.Info, error) {
	now, err := h.current()
	return now.all, err
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
