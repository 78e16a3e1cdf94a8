package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/copies"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/stamps"
)

// Bounds of the configuration files of packages in one sandbox. Further files are left out.
const (
	mostConffileSize   = 1 << 20 // of one file
	mostConffileCopies = 6 << 20 // memory of all copies: below skeletonBytes
	mostConffileMounts = 64
	// mostConffileCopied is the size of the largest copy. A mount takes a sandbox 3 kB of memory.
	mostConffileCopied = 16 << 10
)

// takeConffiles takes the configuration files of the host's packages that package conffiles names.
// Each is a regular file of root that every user of the host can read and that only root can
// write. No symbolic link and no other mount leads to the file.
func (c *etcPlan) takeConffiles(files []conffiles.File) error {
	var found []candidate
	for _, file := range files {
		if !c.to.free(file.Name) || c.plan.sources.rules.IsPrivate(path.Join(c.etc.path, file.Name)) {
			continue
		}
		public, err := c.inPublicDirs(path.Dir(file.Name))
		if err == nil && public {
			var one candidate
			if one, err = c.examine(file); one.public {
				found = append(found, one)
			}
		}
		if err != nil {
			return fmt.Errorf("configuration file of a package: %w", err)
		}
	}
	if c.share(found) == nil {
		return nil
	}
	for _, one := range found {
		text, ok, err := c.read(one.File)
		if err == nil && ok {
			err = c.provide(one.Name, text)
		}
		if err != nil {
			return fmt.Errorf("configuration file of a package: %w", err)
		}
	}
	return nil
}

// A candidate is a file that a sandbox may show, if the text has no secret.
type candidate struct {
	conffiles.File
	state  stamps.State
	public bool
}

// examine looks at a file, but not at the text.
func (c *etcPlan) examine(file conffiles.File) (candidate, error) {
	c.plan.sources.stamps.Add(path.Join(c.etc.path, file.Name))
	var st unix.Stat_t
	err := unix.Fstatat(c.etc.fd, file.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if hostpaths.Absent(err) || errors.Is(err, fs.ErrPermission) {
		return candidate{}, nil
	}
	if err != nil {
		return candidate{}, &os.PathError{Op: "stat", Path: file.Name, Err: err}
	}
	return candidate{file, stamps.StateOf(&st, nil), publicFile(&st)}, nil
}

// publicFile says whether a file is for every user of the host.
func publicFile(st *unix.Stat_t) bool {
	return st.Mode == unix.S_IFREG|0o644 && st.Uid == 0 && st.Size <= mostConffileSize
}

// free says whether a path below a directory of the skeleton shows nothing yet.
func (n *node) free(name string) bool {
	for _, part := range split(name) {
		next := n.children[part]
		if next == nil {
			return true
		}
		if next.kind != dirNode {
			return false
		}
		n = next
	}
	return false
}

// inPublicDirs says whether a directory below /etc and all directories above are public.
func (c *etcPlan) inPublicDirs(dir string) (bool, error) {
	if public, known := c.dirs[dir]; known {
		return public, nil
	}
	public, err := c.inPublicDirs(path.Dir(dir))
	if public && err == nil {
		c.plan.sources.stamps.Add(path.Join(c.etc.path, dir))
		var st unix.Stat_t
		err = unix.Fstatat(c.etc.fd, dir, &st, unix.AT_SYMLINK_NOFOLLOW)
		public = err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && publicDir(st.Mode, st.Uid)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	c.dirs[dir] = public
	return public, err
}

// publicDir says whether every user of the host may go through a directory, and only root may
// change the directory.
func publicDir(mode, uid uint32) bool { return uid == 0 && mode&0o023 == 0o001 }

// read reads one file, unless the file is not for everybody.
func (c *etcPlan) read(file conffiles.File) (text string, ok bool, err error) {
	fd, err := descriptor.Open(c.etc.fd, file.Name, descriptor.OneMount, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if hostpaths.Absent(err) || errors.Is(err, unix.EXDEV) || errors.Is(err, fs.ErrPermission) {
		return "", false, nil
	}
	if err != nil {
		return "", false, &os.PathError{Op: "open", Path: file.Name, Err: err}
	}
	defer descriptor.CloseFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", false, &os.PathError{Op: "stat", Path: file.Name, Err: err}
	}
	if !publicFile(&st) {
		return "", false, nil
	}
	all := make([]byte, st.Size)
	n, err := descriptor.Retry(func() (int, error) { return unix.Read(fd, all) })
	if err != nil {
		return "", false, &os.PathError{Op: "read", Path: file.Name, Err: err}
	}
	return string(all), n == len(all) && file.Harmless(all), nil
}

// provide shows a small file as a copy, and mounts a larger one.
func (c *etcPlan) provide(name, text string) error {
	if len(text) <= mostConffileCopied {
		if memory := c.memory + copies.Size(text); memory <= mostConffileCopies {
			c.memory = memory
			c.to.putBelow(name, &node{kind: fileNode, text: text}, newDir)
		}
		return nil
	}
	if c.mounts == mostConffileMounts {
		return nil
	}
	s, _, err := c.etc.entry(name)
	if err != nil || s == nil {
		return err
	}
	c.mounts++
	c.plan.sources.add(s)
	v, err := c.plan.hostView(s)
	if err != nil {
		return err
	}
	v.show(s)
	c.to.putBelow(name, &node{kind: bindNode, src: s}, newDir)
	return nil
}

var errNoCopies = errors.New("no shared copies")

// share shows the files, and the other copies below /etc, through a layer that all sandboxes have. After an
// error nothing has changed, and the sandbox must have copies of its own.
func (c *etcPlan) share(found []candidate) error {
	if c.plan.copies == nil {
		return errNoCopies
	}
	dir, err := c.plan.copies()
	if err != nil {
		return err
	}
	defer dir.Close()
	own := map[string]*node{}
	c.to.hostFiles("", own)
	var all []copies.File
	for _, name := range slices.Sorted(maps.Keys(own)) {
		all = append(all, copies.File{Name: name, State: own[name].host, Link: true})
	}
	for _, one := range found {
		all = append(all, copies.File{Name: one.Name, Sum: one.Sum, State: one.state})
	}
	read := func() (map[string]string, error) { return c.readAll(found, own) }
	version, err := copies.Store{Dir: dir}.Open(all, copies.Source{Dir: c.etc.fd, Began: c.plan.began, Read: read})
	if err != nil {
		return err
	}
	layer := &source{path: version.Path, origin: version.Path, real: version.Path, fd: version.Tree, tree: -1, dir: true, shown: asOnDisk}
	c.plan.sources.add(layer)
	c.plan.under, c.to.under = layer, layer
	for _, name := range version.Names {
		c.to.putBelow(name, &node{kind: fileNode, copy: true}, newDir)
	}
	return nil
}

// hostFiles collects the copies of files of the host below a directory, but for names that no list can have.
func (n *node) hostFiles(at string, files map[string]*node) {
	for name, child := range n.children {
		place := path.Join(at, name)
		if child.kind == fileNode && child.host != (stamps.State{}) && !strings.Contains(place, "\n") {
			files[place] = child
		}
		child.hostFiles(place, files)
	}
}

// readAll returns the texts of the copies and of the files that have no secret.
func (c *etcPlan) readAll(found []candidate, own map[string]*node) (map[string]string, error) {
	texts, size := map[string]string{}, 0
	for name, n := range own {
		texts[name] = n.text
	}
	for _, one := range found {
		text, ok, err := c.read(one.File)
		if err != nil {
			return nil, err
		}
		if ok && size+copies.Size(text) <= mostConffileCopies && !strings.Contains(one.Name, "\n") {
			size += copies.Size(text)
			texts[one.Name] = text
		}
	}
	return texts, nil
}
