package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Group is one group, named alike in every hierarchy of its Host. It is a
// name, holds nothing in the kernel until it is asked for leaves (see Close),
// and is safe for concurrent use.
//
// A group may exist in some hierarchies only; it exists as long as it does in
// one. Asked about a group that does not exist, Stats, Events, Freeze and Thaw
// answer fs.ErrNotExist; Procs finds nothing in it, and Kill and Delete have
// nothing to do.
type Group struct {
	host *Host
	path string

	mu   sync.Mutex // above home
	home *home      // nil until the first leaf
}

// Open names the group at path; it need not exist, and without leaves there is
// nothing to close. path is relative to the roots of the hierarchies, as libcontainer's
// cgroupsPath is: absolute, clean, and not "/".
func (h *Host) Open(path string) (*Group, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	return &Group{host: h, path: path}, nil
}

// Path is the path of the group below the root of each hierarchy.
func (g *Group) Path() string { return g.path }

// Procs lists the processes in the group and in the groups below it, in any
// hierarchy, sorted. Processes outside the caller's pid namespace have no
// number here and are left out.
func (g *Group) Procs() ([]int, error) {
	m, err := g.processes().members()
	return m.pids, g.failed("list processes of", err)
}

// processes are the processes of a group and of those below it.
type processes struct {
	host *Host
	path string
}

func (g *Group) processes() processes { return processes{g.host, g.path} }

// files are the files of a group with its limits and its counts, in the hierarchies of their controllers.
type files struct {
	host *Host
	path string
}

func (g *Group) files() files { return files{g.host, g.path} }

// failed adds the operation and the group to an error, if there is one.
func (g *Group) failed(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s cgroup %s: %w", operation, g.path, err)
}

// members are the processes of a group and of those below it.
type members struct {
	pids   []int // sorted, each once
	hidden bool  // there are some outside the caller's pid namespace
}

func (m members) isEmpty() bool { return len(m.pids) == 0 && !m.hidden }

func (m members) String() string {
	const show = 8
	var words []string
	for _, pid := range m.pids[:min(show, len(m.pids))] {
		words = append(words, strconv.Itoa(pid))
	}
	if n := len(m.pids) - show; n > 0 {
		words = append(words, fmt.Sprintf("and %d more", n))
	}
	if m.hidden {
		words = append(words, "some outside this pid namespace")
	}
	return strings.Join(words, " ")
}

func (ps processes) members() (members, error) {
	return ps.membersIn(ps.host.trees...)
}

// membersIn are the members as some hierarchies list them.
func (ps processes) membersIn(trees ...tree) (members, error) {
	var m members
	for _, t := range trees {
		err := t.eachGroup(ps.path, func(dir *os.File) error { return m.add(dir, dir.Name() == t.path(ps.path)) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return members{}, err
		}
	}
	slices.Sort(m.pids)
	m.pids = slices.Compact(m.pids)
	return m, nil
}

// add adds the processes of one group. Reading the processes of a threaded
// group is refused, but those are listed at the root of its threaded subtree
// (cgroup-v2.rst, "Threads"); if top is threaded that root is outside, and then
// the refusal is the answer.
func (m *members) add(dir *os.File, top bool) error {
	list, err := readFile(dir, "cgroup.procs")
	if errors.Is(err, unix.EOPNOTSUPP) && !top {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return fmt.Errorf("parse %s/cgroup.procs: %w", dir.Name(), err)
		}
		if pid == 0 {
			m.hidden = true
			continue
		}
		m.pids = append(m.pids, pid)
	}
	return nil
}
