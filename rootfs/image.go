package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

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
	p.sources = append(p.sources, s)
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
var imageFiles = []string{"hostname", "hosts", resolvName}

// placeImageFiles covers the files of the image that only the runtime can know. A place where the image has no file, or
// a directory or a link, stays as it is.
func (p *plan) placeImageFiles(cfg *Config) error {
	generated := generatedEtc(cfg)
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
