package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/etcfiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// notTaken are the top-level entries of Config.Dir that the sandbox has of its
// own.
var notTaken = []string{"dev", "proc", "sys", "tmp", "run", "workspace"}

// dirRoot plans the root from a directory.
func (p *plan) dirRoot(dir string) error {
	s, err := p.sources.openNamed(p.sources.rules, dir, false, asOnDisk)
	if err != nil {
		return fmt.Errorf("rootfs %w", err)
	}
	if !s.dir {
		return fmt.Errorf("rootfs %s is not a directory", dir)
	}
	return p.rootOf(s)
}

// rootOf plans the root from a directory's entries.
func (p *plan) rootOf(s *source) error {
	p.root.kind, p.root.src = bindNode, s
	for _, name := range notTaken {
		p.root.addChild(name, newDir())
	}
	if err := p.unfoldOne(p.root); err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	p.root.mode, p.root.uid, p.root.gid = 0o755, 0, 0
	return nil
}

// hostRoot plans the host's own root.
func (p *plan) hostRoot(cfg *Config) error {
	usr, err := p.openHost("/usr")
	if err != nil {
		return fmt.Errorf("the host's own root: %w", err)
	}
	p.root.addChild("usr", &node{kind: bindNode, src: usr})
	for _, name := range hostpaths.OwnTop {
		if err := p.takeTop(name); err != nil {
			return fmt.Errorf("the host's own root: %w", err)
		}
	}
	etc := p.root.addChild("etc", newDir())
	for name, content := range cfg.ownEtc().Files() {
		etc.addChild(name, &node{kind: fileNode, text: content})
	}
	etc.addChild("mtab", &node{kind: linkNode, text: "../proc/self/mounts"})
	if err := takeEtc(p, etc); err != nil {
		return fmt.Errorf("the host's own root: %w", err)
	}
	if err := p.takeTeX(); err != nil {
		return fmt.Errorf("the host's own root: %w", err)
	}
	return nil
}

// takeTop takes a top-level entry of the host as it is there.
func (p *plan) takeTop(name string) error {
	p.sources.stamps.Add("/" + name)
	link, err := os.Readlink("/" + name)
	switch {
	case err == nil:
		p.root.addChild(name, &node{kind: linkNode, text: link})
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, unix.EINVAL): // EINVAL: no symbolic link
		return err
	}
	s, err := p.openHost("/" + name)
	if err == nil {
		p.root.addChild(name, &node{kind: bindNode, src: s})
	}
	return err
}

// putBelow puts a node at a path of several names, and makes missing directories.
func (n *node) putBelow(name string, child *node, directory func() *node) {
	dir, base := path.Split(name)
	for _, d := range split(dir) {
		next := n.children[d]
		if next == nil {
			next = n.addChild(d, directory())
		}
		n = next
	}
	n.addChild(base, child)
}

// imageName stands for the path of an image in messages.
const imageName = "/image"

// imageRoot plans the root from an image. An image is of no user of the host, and no file of the host can be
// reached by the image. So no rule about the host's paths applies.
func (p *plan) imageRoot(cfg *Config) error {
	fd, err := descriptor.Open(int(cfg.Image.Fd()), ".", descriptor.Beneath, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open the image: %w", err)
	}
	s := &source{path: imageName, origin: imageName, real: imageName, fd: fd, tree: -1, shown: asOnDisk, dir: true}
	p.sources.add(s)
	if cfg.Writable {
		p.overlaidRoot(s)
	} else if err := p.rootOf(s); err != nil {
		return err
	}
	return p.placeImageFiles(cfg)
}

// overlaidRoot plans the root as one overlay. At the places of notTaken the image can have links, which must not lead
// the sandbox's own directories to other places.
func (p *plan) overlaidRoot(s *source) {
	s.path, s.image, s.overlay = "/", true, &overlay{}
	p.root.kind, p.root.src = bindNode, s
	for _, name := range notTaken {
		p.root.addChild(name, &node{kind: passNode})
	}
}

// imageFiles are the generated files of /etc that an image's root has.
var imageFiles = []string{"hostname", "hosts", etcfiles.ResolvConf}

// placeImageFiles covers the files of the image that only the runtime can know. A place where the image has no file, or
// a directory or a link, stays as it is.
func (p *plan) placeImageFiles(cfg *Config) error {
	generated := cfg.ownEtc().Files()
	p.imageFiles = map[string]*node{}
	for _, name := range imageFiles {
		text, isGenerated := generated[name]
		if !isGenerated {
			continue
		}
		at, missing, err := p.find("/etc/" + name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue
		}
		if err != nil {
			return fmt.Errorf("/etc/%s of the image: %w", name, err)
		}
		if len(missing) > 0 || at.dir || at.node != nil || at.bind == nil || !strings.HasPrefix(at.path, "/etc/") {
			continue
		}
		p.imageFiles[name] = &node{kind: maskNode, file: true, text: text}
		at.through(p.imageFiles[name])
	}
	return nil
}
