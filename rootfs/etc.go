package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/etcfiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/stamps"
)

// An etcPlan takes files of the host's /etc into a plan.
type etcPlan struct {
	plan   *plan
	etc    *source
	to     *node
	dirs   map[string]bool // known directories below /etc, and whether they are public
	memory int             // of all copies
	mounts int
}

func newEtcPlan(p *plan, etc *source, to *node) *etcPlan {
	return &etcPlan{plan: p, etc: etc, to: to, dirs: map[string]bool{".": publicDir(etc.mode, etc.uid)}}
}

// takeEtc takes the parts of the host's /etc into a plan.
func takeEtc(p *plan, to *node) error {
	for _, pattern := range etcfiles.Taken {
		if err := p.sources.stamps.AddPattern("/etc", pattern); err != nil {
			return err
		}
	}
	etc, err := p.sources.open("/etc")
	if err != nil {
		return err
	}
	present, err := etc.names(1 << 20)
	if err != nil {
		return err
	}
	names, err := etcfiles.Names(etc.path, present)
	if err != nil {
		return err
	}
	v, err := p.hostView(etc)
	if err != nil {
		return err
	}
	c := newEtcPlan(p, etc, to)
	for _, name := range names {
		n, err := c.node(v, name)
		if err != nil {
			return err
		}
		if n != nil {
			to.putBelow(name, n, newDir)
		}
	}
	if slices.Contains(present, "php") {
		if err := c.takePHP(); err != nil {
			return err
		}
	}
	for _, database := range conffiles.Databases() {
		p.sources.stamps.Add(database)
	}
	files, err := p.packages.Files()
	if err != nil {
		return fmt.Errorf("packages of the host: %w", err)
	}
	return c.takeConffiles(files)
}

// takePHP takes files that load the modules of PHP.
func (c *etcPlan) takePHP() error {
	stamped := errors.Join(c.plan.sources.stamps.AddPattern(c.etc.path, "php/"+etcfiles.PHPConfigured), c.plan.sources.stamps.AddPattern("/usr/lib/php", etcfiles.PHPAPIs))
	if stamped != nil {
		return stamped
	}
	modules, err := etcfiles.PHPModules(c.etc.path+"/php", "/usr/lib/php")
	for name, text := range modules {
		c.to.putBelow("php/"+name, &node{kind: fileNode, text: text}, newDir)
	}
	return err
}

// texFiles are the formats and font maps that Debian's TeX has made of its packages. Without
// them no TeX runs.
const texFiles = "/var/lib/texmf"

func (p *plan) takeTeX() error {
	s, err := p.openHost(texFiles)
	if hostpaths.Absent(err) || err == nil && (!s.dir || !s.public()) {
		return nil
	}
	if err != nil {
		return err
	}
	p.root.putBelow(texFiles[1:], &node{kind: bindNode, src: s}, newDir)
	return nil
}

// node takes one path below /etc, or gives nil for a missing one. A symbolic link into
// /usr stays one, since programs read the link of localtime. Any other link is replaced by
// its target.
func (c *etcPlan) node(v *view, name string) (*node, error) {
	s, link, err := c.etc.entry(name)
	if link != "" || errors.Is(err, unix.ELOOP) {
		s, err = openSource(path.Join(c.etc.path, name), false, asNobody, c.plan.sources.rules)
	}
	if hostpaths.Absent(err) || err == nil && s == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n, err := etcCopy(s, link, name)
	if err != nil || n != nil || !s.public() {
		s.close()
		return n, err
	}
	c.plan.sources.add(s)
	v.show(s)
	return &node{kind: bindNode, src: s}, nil
}

// etcCopy is a link or a small file of a directory below /etc. It is nil for a file that must be
// mounted.
func etcCopy(s *source, link, name string) (*node, error) {
	switch {
	case !s.public():
		return nil, nil
	case link != "" && hostpaths.Within(s.real, "/usr"):
		return &node{kind: linkNode, text: link}, nil
	case s.dir, !strings.Contains(name, "/"):
		return nil, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil { // before the text is read
		return nil, &os.PathError{Op: "stat", Path: s.path, Err: err}
	}
	text, err := s.text(mostCopied)
	if err != nil || len(text) > mostCopied {
		return nil, err
	}
	return &node{kind: fileNode, text: text, host: stamps.StateOf(&st, nil)}, nil
}

// mostCopied is the size of the largest single file of /etc that a sandbox gets as a copy. A copy
// costs a start less than a mount does, and a host can have dozens of these files.
const mostCopied = 64 << 10

// public says whether every user of the host may read the source.
func (s *source) public() bool {
	if s.dir {
		return s.mode&0o005 == 0o005
	}
	return s.mode&0o004 != 0
}

// aptParts is the directory with the configuration of apt. aptPart is the runtime's own file there: apt reads it after
// the other files.
const (
	aptParts = "/etc/apt/apt.conf.d"
	aptPart  = "zz-sandbox-runtime"
)

// placeApt shows etcfiles.AptConfig in a root that is writable and has apt.
func (p *plan) placeApt() error {
	at, missing, err := p.find(aptParts)
	if hostpaths.Absent(err) || os.IsPermission(err) || len(missing) > 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("configuration of apt: %w", err)
	}
	if !at.dir || at.path != aptParts || at.bind == nil || at.bind.src.overlay == nil || at.bind.src.shown != asOnDisk {
		return nil // no root of the whole host or of an image, or a bind of the user's own
	}
	at.descend([]string{aptPart}).through(&node{kind: maskNode, file: true, text: etcfiles.AptConfig})
	return nil
}
