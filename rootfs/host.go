package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ownTop are the host's directories that make up its own root beside /usr:
// symbolic links into it on most systems, directories on others.
var ownTop = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// notTaken are the top-level entries of Config.Dir that the sandbox has of its
// own.
var notTaken = []string{"dev", "proc", "sys", "tmp", "run", "workspace"}

// etcTaken are the parts of the host's /etc that programs need in order to run at all.
// None may be a place for secrets: no ssl/private, no profile.d, no directory of a
// service. A part that is missing or that not every user of the host can read is left out.
var etcTaken = []string{
	"alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts",
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "mime.types",
	"os-release", "pki/ca-trust/extracted", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf",
	"protocols", "services", "ssl/ca-bundle.pem", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf",
	"terminfo", "timezone",
}

// etcTakenAlso match top-level names of /etc: musl's library path, and the
// configuration without which a Debian JVM does not start.
var etcTakenAlso = []string{"ld-musl-*.path", "java-*-openjdk"}

// dirRoot plans the root from a directory.
func (p *plan) dirRoot(dir string) error {
	s, err := p.openNamed(dir, false, asOnDisk)
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
		p.root.put(name, newDir())
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
	p.root.put("usr", &node{kind: bindNode, src: usr})
	for _, name := range ownTop {
		if err := p.takeTop(name); err != nil {
			return fmt.Errorf("the host's own root: %w", err)
		}
	}
	etc := p.root.put("etc", newDir())
	for name, content := range generatedEtc(cfg) {
		etc.put(name, &node{kind: fileNode, text: content})
	}
	etc.put("mtab", &node{kind: linkNode, text: "../proc/self/mounts"})
	if err := p.takeEtc(etc); err != nil {
		return fmt.Errorf("the host's own root: %w", err)
	}
	return nil
}

// takeTop takes a top-level entry of the host as it is there.
func (p *plan) takeTop(name string) error {
	link, err := os.Readlink("/" + name)
	switch {
	case err == nil:
		p.root.put(name, &node{kind: linkNode, text: link})
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, unix.EINVAL): // EINVAL: no symbolic link
		return err
	}
	s, err := p.openHost("/" + name)
	if err == nil {
		p.root.put(name, &node{kind: bindNode, src: s})
	}
	return err
}

func (p *plan) takeEtc(to *node) error {
	etc, err := p.open("/etc", asNobody)
	if err != nil {
		return err
	}
	present, err := etc.names(1 << 20)
	if err != nil {
		return err
	}
	names := slices.DeleteFunc(slices.Clone(etcTaken), func(name string) bool {
		top, _, _ := strings.Cut(name, "/")
		return !slices.Contains(present, top)
	})
	for _, name := range present {
		for _, pattern := range etcTakenAlso {
			if ok, _ := path.Match(pattern, name); ok {
				names = append(names, name)
			}
		}
	}
	v, err := p.hostView(etc)
	if err != nil {
		return err
	}
	for _, name := range names {
		n, err := p.etcNode(etc, v, name)
		if err != nil {
			return err
		}
		if n != nil {
			to.putBelow(name, n, newDir)
		}
	}
	return nil
}

// etcNode takes one path below /etc, or gives nil for a missing one. A symbolic link into
// /usr stays one, since programs read the link of localtime. Any other link is replaced by
// its target.
func (p *plan) etcNode(etc *source, v *view, name string) (*node, error) {
	s, link, err := etc.entry(name)
	if link != "" || errors.Is(err, unix.ELOOP) {
		s, err = openSource(path.Join(etc.path, name), false, asNobody, p.rules)
	}
	if absent(err) || err == nil && s == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p.sources = append(p.sources, s)
	switch {
	case !s.public():
		return nil, nil
	case link != "" && within(s.real, "/usr"):
		return &node{kind: linkNode, text: link}, nil
	}
	v.show(s)
	return &node{kind: bindNode, src: s}, nil
}

// absent says whether an error means that a path is not there, or leads nowhere
// that could be shown.
func absent(err error) bool {
	var forbidden *ForbiddenError
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.As(err, &forbidden)
}

// public says whether every user of the host may read the source.
func (s *source) public() bool {
	if s.dir {
		return s.mode&0o005 == 0o005
	}
	return s.mode&0o004 != 0
}

// putBelow puts a node at a path of several names, and makes missing directories.
func (n *node) putBelow(name string, child *node, directory func() *node) {
	dir, base := path.Split(name)
	for _, d := range split(dir) {
		next := n.children[d]
		if next == nil {
			next = n.put(d, directory())
		}
		n = next
	}
	n.put(base, child)
}

// generatedEtc are the files of /etc that are the sandbox's own.
func generatedEtc(cfg *Config) map[string]string {
	u := cfg.User
	rootHome := "/"
	if u.UID == 0 {
		rootHome = u.Home
	}
	passwd := fmt.Sprintf("root:x:0:0:root:%s:/bin/sh\n", rootHome)
	if u.UID != 0 {
		passwd += fmt.Sprintf("%s:x:%d:%d:%s:%s:/bin/sh\n", UserName, u.UID, u.GID, UserName, u.Home)
	}
	group := "root:x:0:\n"
	if u.GID != 0 {
		group += fmt.Sprintf("%s:x:%d:\n", UserName, u.GID)
	}
	files := map[string]string{
		"passwd": passwd + "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
		"group":  group + "nogroup:x:65534:\n",
		"hosts":  "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n" +
			"networks: files\nprotocols: files\nservices: files\n",
	}
	if cfg.Hostname != "" {
		files["hosts"] += "127.0.1.1\t" + cfg.Hostname + "\n"
		files["hostname"] = cfg.Hostname + "\n"
	}
	return files
}
