package integration

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A hierarchy is one mounted cgroup tree.
type hierarchy struct {
	mountPoint string
	kind       string // cgroup or cgroup2
	options    string // mount options that choose controllers, v1 only
}

// cgroupHierarchies lists the cgroup mounts of this mount namespace.
func cgroupHierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []hierarchy
	for line := range strings.Lines(string(mounts)) {
		left, right, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 5 || len(g) < 3 || (g[0] != "cgroup" && g[0] != "cgroup2") {
			continue
		}
		h := hierarchy{mountPoint: f[4], kind: g[0]}
		if h.kind == "cgroup" {
			h.options = controllersOf(g[2])
		}
		if !slices.Contains(found, h) {
			found = append(found, h)
		}
	}
	return found, nil
}

// controllersOf strips from a v1 mount's options what chooses no controller.
func controllersOf(options string) string {
	chosen := slices.DeleteFunc(strings.Split(options, ","), func(o string) bool {
		return o == "rw" || o == "xattr" || o == "clone_children" || strings.HasPrefix(o, "release_agent=")
	})
	return strings.Join(chosen, ",")
}

// mountHere mounts the hierarchy anew, so that its root is this cgroup
// namespace's. On v2 the processes leave that root for a child: a group that
// hands out controllers may hold none.
func (h hierarchy) mountHere() error {
	if err := os.MkdirAll(h.mountPoint, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("cgroup", h.mountPoint, h.kind, 0, h.options); err != nil {
		return fmt.Errorf("mount %s: %w", h.mountPoint, err)
	}
	if h.kind == "cgroup" {
		return nil
	}
	tests := filepath.Join(h.mountPoint, "tests")
	if err := os.Mkdir(tests, 0o755); err != nil {
		return err
	}
	if err := joinCgroup(tests); err != nil {
		return err
	}
	controllers, err := os.ReadFile(filepath.Join(h.mountPoint, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(controllers)) {
		if err := os.WriteFile(filepath.Join(h.mountPoint, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			return err
		}
	}
	return nil
}

// ownCgroups returns the directories of the groups this process is in, in the
// order of the hierarchies.
func ownCgroups(hierarchies []hierarchy) ([]string, error) {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	groups := make([]string, len(hierarchies))
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// hierarchy-ID:controller-list:path, cgroups(7)
		f := strings.SplitN(lines.Text(), ":", 3)
		if len(f) != 3 {
			continue
		}
		for i, h := range hierarchies {
			if h.options == f[1] { // both empty on v2
				groups[i] = filepath.Join(h.mountPoint, f[2])
			}
		}
	}
	if i := slices.Index(groups, ""); i >= 0 {
		return nil, fmt.Errorf("/proc/self/cgroup has no line for %s", hierarchies[i].mountPoint)
	}
	return groups, nil
}

// makeCgroup makes a group that processes can join: a new cpuset is empty
// until its cpus and nodes are set.
func makeCgroup(group string) error {
	if err := os.Mkdir(group, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		all, err := os.ReadFile(filepath.Join(filepath.Dir(group), name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(group, name), all, 0); err != nil {
			return err
		}
	}
	return nil
}

func joinCgroup(group string) error {
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

// removeCgroups removes the group name and what is below it in each
// hierarchy. Processes that were just killed may need a moment to leave, and to
// be thawed.
func removeCgroups(hierarchies []hierarchy, name string) error {
	for _, h := range hierarchies {
		for _, g := range cgroupsBelow(filepath.Join(h.mountPoint, name)) {
			file := filepath.Join(g, "freezer.state")
			if state, _ := os.ReadFile(file); len(state) > 0 {
				_ = os.WriteFile(file, []byte("THAWED"), 0)
			}
		}
	}
	var errs []error
	for _, h := range hierarchies {
		groups := cgroupsBelow(filepath.Join(h.mountPoint, name))
		slices.Reverse(groups) // children first
		for _, g := range groups {
			err := unix.Rmdir(g)
			for end := time.Now().Add(patience); err == unix.EBUSY && time.Now().Before(end); err = unix.Rmdir(g) {
				time.Sleep(10 * time.Millisecond)
			}
			if err != nil && err != unix.ENOENT { // who made it may remove it, too
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", g, err))
			}
		}
	}
	return errors.Join(errs...)
}

// cgroupsBelow lists the group and all its descendants, parents first.
func cgroupsBelow(group string) []string {
	var groups []string
	_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			groups = append(groups, path)
		}
		return nil // a group that vanished meanwhile is none
	})
	return groups
}
