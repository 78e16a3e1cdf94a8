package launcher

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
)

// A cover is a place of a sandbox with what is put over it, in a view of one
// command or for all.
type cover struct {
	place
	// live is what is there now, attached; lower a detached mount of it, for
	// what is no overlay.
	live, lower *os.File
	// children are what is mounted below it, by where, that is no place itself.
	children map[string]*os.File
	// mount is what is put there.
	mount *os.File
}

// covers are the places of a sandbox. Whoever has them closes them.
type covers []*cover

func newCovers(r record) covers {
	var all covers
	for _, p := range r.places() {
		all = append(all, &cover{place: p, children: map[string]*os.File{}})
	}
	return all
}

func (all covers) close() {
	for _, c := range all {
		closeFiles([]*os.File{c.live, c.lower, c.mount})
		for _, f := range c.children {
			f.Close()
		}
	}
}

// look opens what is at each place now, on a thread in the sandbox's mount
// namespace. The mounts are those of its PID 1.
func (all covers) look(mounts []*mountinfo.Info) error {
	for _, c := range all {
		var err error
		if c.live, err = openInside(c.Path); err != nil {
			return err
		}
		if c.Host != "" {
			if c.lower, err = cloneMount(c.live, false); err != nil {
				return err
			}
		}
		for _, rel := range all.below(c.Path, mounts) {
			f, err := openAnyInside(path.Join(c.Path, rel))
			if err != nil {
				return err
			}
			tree, err := cloneMount(f, true)
			f.Close()
			if err != nil {
				return err
			}
			c.children[rel] = tree
		}
	}
	return nil
}

// below is where something is mounted on what is at a place, or is to be.
func (all covers) below(at string, mounts []*mountinfo.Info) (rels []string) {
	top := -1
	for _, m := range mounts {
		if m.Mountpoint == at {
			top = m.ID // the later one lies on the earlier
		}
	}
	for _, m := range mounts {
		rel := strings.TrimPrefix(m.Mountpoint, at+"/")
		isPlace := slices.ContainsFunc(all, func(c *cover) bool { return c.Path == m.Mountpoint })
		if m.Parent == top && rel != m.Mountpoint && !isPlace && !slices.Contains(rels, rel) {
			rels = append(rels, rel)
		}
	}
	return rels
}

// put covers each place, on a thread in the mount namespace in which all are to
// see it.
func (all covers) put() error {
	for _, c := range all {
		// First what is mounted below: some of that hides files.
		for rel, tree := range c.children {
			if err := attachBelow(tree, c.mount, rel); err != nil {
				return fmt.Errorf("%s: %w", path.Join(c.Path, rel), err)
			}
		}
		if err := attachInside(c.mount, c.Path); err != nil {
			return err
		}
	}
	return nil
}

// attachBelow puts a detached mount at a place of another, which lacks it if the
// sandbox was given the mount point.
func attachBelow(tree, top *os.File, rel string) error {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	at, err := unix.Openat2(int(top.Fd()), rel, &how)
	if errors.Is(err, unix.ENOENT) {
		if err := makePoint(int(top.Fd()), rel, tree); err != nil {
			return err
		}
		at, err = unix.Openat2(int(top.Fd()), rel, &how)
	}
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer unix.Close(at)
	if err := unix.MoveMount(int(tree.Fd()), "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// makePoint makes a mount point, and the directories above it.
func makePoint(top int, rel string, tree *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(tree.Fd()), &st); err != nil {
		return err
	}
	made := ""
	for _, name := range strings.Split(path.Dir(rel), "/") {
		if made = path.Join(made, name); made == "." {
			continue
		}
		if err := unix.Mkdirat(top, made, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("mkdir %s: %w", made, err)
		}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.Mkdirat(top, rel, 0o755)
	}
	return unix.Mknodat(top, rel, unix.S_IFREG|0o644, 0)
}

// openAnyInside is openInside of what need not be a directory.
func openAnyInside(path string) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s in the sandbox: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// cloneMount is a detached mount of what is attached, with what is mounted below.
func cloneMount(f *os.File, recursive bool) (*os.File, error) {
	flags := uint(unix.AT_EMPTY_PATH | unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	tree, err := unix.OpenTree(int(f.Fd()), "", flags)
	if errors.Is(err, unix.EINVAL) && !recursive {
		return nil, fmt.Errorf("%s has other file systems mounted below it, and what is written there cannot be kept apart: %w", f.Name(), launch.ErrUnavailable)
	}
	if err != nil {
		return nil, fmt.Errorf("open_tree %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(tree), f.Name()), nil
}

// mountsOfInit are the mounts of a sandbox, as its PID 1 has them.
func mountsOfInit(init identity) ([]*mountinfo.Info, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(init.Pid) + "/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("mounts of the sandbox: %w", errors.Join(launch.ErrNotRunning, err))
	}
	defer f.Close()
	return mountinfo.GetMountsFromReader(f, nil)
}

// cloneFile is another descriptor of the same.
func cloneFile(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
