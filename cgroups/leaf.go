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

// agentName is the name of the group that Divide makes for the sandbox's first process. No
// leaf has this name.
const agentName = "agent"

// Leaf is a group below a Group for one command and its descendants. Their use of resources
// is counted in the Leaf, and a kill of the Leaf kills no other process. A Leaf serves only
// one command, since peaks, counts and cached pages stay with it; see Renew.
//
// A Leaf holds descriptors until Close or Delete, and is safe for concurrent use. It must
// not be used after its Group's Close.
type Leaf struct {
	name   string
	parent *Group
	home   *home

	// mu guards the fields below, except in CreateLeaf and OpenLeaf.
	mu     sync.Mutex
	places []place    // directories of the parent, in the order of joining
	dir    *os.File   // v2
	tasks  []*os.File // v1, one for each of places
	files  []leafFile // opened by earlier reads
	closed bool
	// killed says that Kill was called: a process that joins later must be killed.
	killed bool
	// limited says that Limit has set limits.
	limited bool
	// renewed says that Renew has handed the cgroup to another Leaf.
	renewed bool

	forkless bool  // v1: a kill has set pids.max to forbid forks
	hits     int64 // PidsLimitHits before that
}

// LeafOptions are the options of a new leaf. The zero value adds no limits to those of the
// group, and lets only root move processes into the leaf.
type LeafOptions struct {
	Pids  int64 // most tasks (threads) at once; 0: only the group's limit
	Owner int   // v2: the host's id of the process that moves others in, see [Group.Divide]
	// Repeated are the limits of memory and of processor time of the group. The leaf repeats
	// them for programs that read the limits of their own group only.
	Repeated LeafLimits
}

// CreateLeaf makes a leaf and opens it. A name has letters, digits, - and _.
//
// Errors: [fs.ErrExist] if the name is taken, [fs.ErrNotExist] if the group is gone.
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

// OpenLeaf opens an existing leaf of any process.
//
// Errors: [fs.ErrNotExist] if no leaf has the name.
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

// Leaves lists the names of the group's leaves, sorted. All groups directly below the group
// are leaves, except that of the sandbox's first process.
func (g *Group) Leaves() ([]string, error) {
	names, err := g.host.Children(g.path)
	return slices.DeleteFunc(names, func(name string) bool { return name == agentName }), err
}

// leaf returns a Leaf that is neither made nor opened yet.
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
		return fmt.Errorf("the name %q is reserved for the sandbox's first process", agentName)
	case len(name) > unix.NAME_MAX:
		return errors.New("the name is too long")
	case strings.Trim(name, allowed) != "":
		return fmt.Errorf("invalid name %q: use letters, digits, - and _", name)
	}
	return nil
}

// create makes the leaf in each hierarchy of the group, except a hierarchy with a limit of the
// group's disk traffic. There the leaf's processes stay in the group.
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
		if err := l.addPlace(p); err != nil {
			return err
		}
	}
	if l.dir != nil {
		if err := l.places[0].delegate(l.name, opts.Owner); err != nil {
			return err
		}
	}
	if err := l.repeat(opts.Repeated); err != nil {
		return err
	}
	return l.limit(LeafLimits{Pids: opts.Pids})
}

// addPlace makes the leaf in one hierarchy and opens the file through which a process joins.
func (l *Leaf) addPlace(p place) error {
	if err := p.mkdir(l.name); err != nil {
		return err
	}
	l.places = append(l.places, p)
	if err := p.countSockets(l.name); err != nil {
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

// open opens the leaf in each hierarchy that has it.
func (l *Leaf) open() error {
	for _, p := range append(slices.Clip(l.home.places), l.home.cpu) {
		if p.dir == nil {
			continue
		}
		err := l.openIn(p)
		if isGone(err) { // not made in this hierarchy, or just removed
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

// asGroup returns the leaf as a Group, limited to the hierarchies that have the leaf.
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

// undo removes the parts of the leaf that create has made.
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

// Join returns the files through which a process joins the leaf. On v2 it is the directory,
// for clone3(2) with CLONE_INTO_CGROUP. On v1 the process writes "0" to each of the tasks
// files, in this order. The files belong to the leaf, and the caller must not close them.
// Call Join after Limit.
//
// With the directory a process reaches the leaf's group and the groups below, but nothing
// else of the host.
func (l *Leaf) Join() (dir *os.File, tasks []*os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dir, slices.Clone(l.tasks)
}

// Close closes the leaf's descriptors. The cgroup stays.
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

// placeOf returns the place that has the files of a controller.
func (l *Leaf) placeOf(controller string) (place, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.places {
		if p.tree.v2 || slices.Contains(p.tree.controllers, controller) {
			return p, true
		}
	}
	return place{}, false
}

// read reads the begin of a file below the place's directory, at most len(room) bytes.
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
