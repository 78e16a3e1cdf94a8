package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// agentName is the group below a divided one where the sandbox's own first
// process lives. No leaf has this name.
const agentName = "agent"

// Leaf is a group below a Group for one command: the use of the command and its
// descendants is counted apart, and they can be killed apart from the rest. It is for one
// command, since peaks, counts and cached pages stay with it; see Renew.
//
// A Leaf holds descriptors until Close or Delete, and is safe for concurrent use. It must
// not be used after its Group's Close.
type Leaf struct {
	name   string
	parent *Group
	home   *home

	mu     sync.Mutex // guards the fields below, as soon as others have the leaf
	places []place    // directories of the parent, in the order of joining
	dir    *os.File   // v2
	tasks  []*os.File // v1, one for each of places
	files  []leafFile // that were asked for
	closed bool
	killed bool // a process that joins from here on must die
	// limited says that Limit has set limits.
	limited bool
	// renewed says that Renew has handed the cgroup to another Leaf.
	renewed bool

	forkless bool  // v1: the right to fork is taken away
	hits     int64 // PidsLimitHits before that
}

// LeafOptions is how a leaf is made. The zero value limits nothing that the
// group above does not limit, and lets only root bring processes in.
type LeafOptions struct {
	Pids  int64 // most tasks (threads) at once; 0: no limit of its own
	Owner int   // v2: the host's id of the process that brings others in, see [Group.Divide]
}

// CreateLeaf makes a leaf and opens it. One of that name is fs.ErrExist, a
// group that is not there fs.ErrNotExist. A name has letters, digits, - and _.
func (g *Group) CreateLeaf(name string, opts LeafOptions) (*Leaf, error) {
	l, err := g.leaf(name)
	if err == nil {
		err = l.create(opts)
	}
	if err != nil {
		return nil, fmt.Errorf("make leaf %s of cgroup %s: %w", name, g.path, err)
	}
	return l, nil
}

// OpenLeaf opens a leaf that is there, made by this process or another.
// fs.ErrNotExist says that there is none.
func (g *Group) OpenLeaf(name string) (*Leaf, error) {
	l, err := g.leaf(name)
	if err == nil {
		err = l.open()
	}
	if err != nil {
		return nil, fmt.Errorf("open leaf %s of cgroup %s: %w", name, g.path, err)
	}
	return l, nil
}

// Leaves lists the names of the group's leaves, sorted: all groups directly
// below it, save the agent's.
func (g *Group) Leaves() ([]string, error) {
	names, err := g.host.Children(g.path)
	return slices.DeleteFunc(names, func(name string) bool { return name == agentName }), err
}

// leaf names a leaf, in no hierarchy yet.
func (g *Group) leaf(name string) (*Leaf, error) {
	if err := checkLeafName(name); err != nil {
		return nil, err
	}
	h, err := g.opened()
	if err != nil {
		return nil, err
	}
	return &Leaf{name: name, parent: g, home: h}, nil
}

func checkLeafName(name string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	switch {
	case name == "":
		return errors.New("the name is empty")
	case name == agentName:
		return errors.New("the name is that of the sandbox's own first process")
	case len(name) > unix.NAME_MAX:
		return errors.New("the name is too long")
	case strings.Trim(name, allowed) != "":
		return fmt.Errorf("the name %q has other characters than letters, digits, - and _", name)
	}
	return nil
}

// create makes the leaf in each hierarchy of the group, except those that limit the group's
// disk traffic: in these the processes stay in the group.
func (l *Leaf) create(opts LeafOptions) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, l.undo())
		}
	}()
	for _, p := range l.home.places {
		if throttled, err := p.throttled(); err != nil {
			return err
		} else if throttled {
			continue
		}
		if err := l.add(p); err != nil {
			return err
		}
	}
	if l.dir != nil {
		if err := l.delegate(opts.Owner); err != nil {
			return err
		}
	}
	return l.limit(LeafLimits{Pids: opts.Pids})
}

// add makes the leaf in one hierarchy and opens the file through which a process joins.
func (l *Leaf) add(p place) error {
	if err := p.mkdir(l.name); err != nil {
		return err
	}
	l.places = append(l.places, p)
	if err := l.countSockets(p); err != nil {
		return err
	}
	return l.openIn(p)
}

// openIn opens the file through which a process joins in one hierarchy.
func (l *Leaf) openIn(p place) error {
	if p.tree.v2 {
		dir, err := openBelow(p.dir, l.name)
		l.dir = dir
		return err
	}
	tasks, err := openFile(p.dir, l.name+"/tasks", unix.O_WRONLY)
	if err == nil {
		l.tasks = append(l.tasks, tasks)
	}
	return err
}

// open finds the leaf in the hierarchies where it is.
func (l *Leaf) open() error {
	for _, p := range append(slices.Clip(l.home.places), l.home.cpu) {
		if p.dir == nil {
			continue
		}
		err := l.openIn(p)
		if gone(err) { // never there, or it goes this moment
			continue
		}
		if err != nil {
			return errors.Join(err, l.Close())
		}
		l.places = append(l.places, p)
	}
	if len(l.places) == 0 {
		return fs.ErrNotExist
	}
	return nil
}

// asGroup is the leaf as a group of the hierarchies that it is in.
func (l *Leaf) asGroup() *Group {
	l.mu.Lock()
	defer l.mu.Unlock()
	host := *l.parent.host
	host.trees = nil
	for _, p := range l.places {
		host.trees = append(host.trees, p.tree)
	}
	return &Group{host: &host, path: path.Join(l.parent.path, l.name)}
}

// undo removes the leaf that create made.
func (l *Leaf) undo() error {
	errs := []error{l.Close()}
	for _, p := range l.places {
		errs = append(errs, unlessGone(rmdirAt(p.dir, l.name)))
	}
	return errors.Join(errs...)
}

// failed adds the operation and the leaf to an error, if there is one.
func (l *Leaf) failed(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s leaf %s of cgroup %s: %w", operation, l.name, l.parent.path, err)
}

// Name is the leaf's name below its group.
func (l *Leaf) Name() string { return l.name }

// Join returns the files through which a process joins the leaf: on v2 the directory, for
// clone3(2) with CLONE_INTO_CGROUP; on v1 the tasks files, to each of which, in this
// order, it writes "0". They belong to the leaf. Call it after Limit.
//
// From the directory a process reaches the leaf's group and the groups below, and nothing
// else of the host.
func (l *Leaf) Join() (dir *os.File, tasks []*os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dir, slices.Clone(l.tasks)
}

// Close lets go of the leaf's descriptors and leaves the leaf itself.
func (l *Leaf) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var errs []error
	if l.dir != nil {
		errs = append(errs, l.dir.Close())
	}
	for _, f := range l.tasks {
		errs = append(errs, f.Close())
	}
	for _, f := range l.files {
		errs = append(errs, unix.Close(f.fd))
	}
	l.files = nil
	return errors.Join(errs...)
}

// at returns the place with a controller's files.
func (l *Leaf) at(controller string) (place, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.places {
		if p.tree.v2 || slices.Contains(p.tree.controllers, controller) {
			return p, true
		}
	}
	return place{}, false
}

// read reads one of the files below the place's directory into room, as far as
// that goes.
func (p place) read(file string, room []byte) ([]byte, error) {
	fd, err := openAt(p.dir, file, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := call(p.dir, "read", file, func(int) (int, error) { return unix.Read(fd, room) })
	if err != nil {
		return nil, err
	}
	return room[:n], nil
}

// write writes a value into one of the files below the place's directory.
func (p place) write(file, value string) error { return writeFile(p.dir, file, value) }

func (p place) mkdir(name string) error {
	return change(p.dir, "mkdir", name, func(fd int) error { return unix.Mkdirat(fd, name, 0o755) })
}

func (p place) failed(op, file string, err error) error {
	return &fs.PathError{Op: op, Path: path.Join(p.dir.Name(), file), Err: err}
}
