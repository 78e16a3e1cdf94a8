package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
)

// Bounds of the configuration files of packages in one sandbox. Further files are left out.
const (
	mostConffileSize   = 1 << 20 // of one file
	mostConffileCopies = 6 << 20 // memory of all copies: below skeletonBytes
	mostConffileMounts = 64
	// mostConffileCopied is the size of the largest copy. A mount takes a sandbox 3 kB of memory.
	mostConffileCopied = 16 << 10
)

// A conffilePlan takes the configuration files of the host's packages into a plan.
type conffilePlan struct {
	*plan
	etc    *source
	to     *node
	dirs   map[string]bool // known directories below /etc, and whether they are public
	memory int             // of all copies
	mounts int
}

// takeConffiles takes the configuration files of the host's packages that package conffiles names.
// Each is a regular file of root that every user of the host can read and that only root can
// write. No symbolic link and no other mount leads to the file.
func (p *plan) takeConffiles(etc *source, to *node, files []conffiles.File) error {
	c := conffilePlan{plan: p, etc: etc, to: to, dirs: map[string]bool{".": publicDir(etc.mode, etc.uid)}}
	var found []candidate
	for _, file := range files {
		if !to.free(file.Name) || p.rules.isPrivate(path.Join(etc.path, file.Name)) {
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
	state  fileState
	public bool
}

// examine looks at a file, but not at the text.
func (c *conffilePlan) examine(file conffiles.File) (candidate, error) {
	c.stamps.add(path.Join(c.etc.path, file.Name))
	var st unix.Stat_t
	err := unix.Fstatat(c.etc.fd, file.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if absent(err) || errors.Is(err, fs.ErrPermission) {
		return candidate{}, nil
	}
	if err != nil {
		return candidate{}, &os.PathError{Op: "stat", Path: file.Name, Err: err}
	}
	return candidate{file, stateOf(&st, nil), publicFile(&st)}, nil
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
func (c *conffilePlan) inPublicDirs(dir string) (bool, error) {
	if public, known := c.dirs[dir]; known {
		return public, nil
	}
	public, err := c.inPublicDirs(path.Dir(dir))
	if public && err == nil {
		c.stamps.add(path.Join(c.etc.path, dir))
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
func (c *conffilePlan) read(file conffiles.File) (text string, ok bool, err error) {
	fd, err := descriptor.Open(c.etc.fd, file.Name, descriptor.OneMount, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if absent(err) || errors.Is(err, unix.EXDEV) || errors.Is(err, fs.ErrPermission) {
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
func (c *conffilePlan) provide(name, text string) error {
	if len(text) <= mostConffileCopied {
		if memory := c.memory + copySize(text); memory <= mostConffileCopies {
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
	c.sources = append(c.sources, s)
	v, err := c.hostView(s)
	if err != nil {
		return err
	}
	v.show(s)
	c.to.putBelow(name, &node{kind: bindNode, src: s}, newDir)
	return nil
}
