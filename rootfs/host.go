package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// notTaken are the top-level entries of Config.Dir that the sandbox has of its
// own.
var notTaken = []string{"dev", "proc", "sys", "tmp", "run", "workspace"}

// dirRoot plans the root from a directory.
func (p *plan) dirRoot(dir string) error {
	s, err := p.openNamed(p.rules, dir, false, asOnDisk)
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
	for name, content := range generatedEtc(cfg) {
		etc.addChild(name, &node{kind: fileNode, text: content})
	}
	etc.addChild("mtab", &node{kind: linkNode, text: "../proc/self/mounts"})
	if err := p.takeEtc(etc); err != nil {
		return fmt.Errorf("the host's own root: %w", err)
	}
	if err := p.takeTeX(); err != nil {
		return fmt.Errorf("the host's own root: %w", err)
	}
	return nil
}

// takeTop takes a top-level entry of the host as it is there.
func (p *plan) takeTop(name string) error {
	p.stamps.add("/" + name)
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
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n" +
			"networks: files\nprotocols: files\nservices: files\n",
	}
	if cfg.NameServer != "" {
		files[resolvName] = resolvConf(cfg)
	}
	maps.Copy(files, hostnameFiles(cfg.Hostname))
	return files
}

// hostnameFiles are the files of /etc with the sandbox's host name.
func hostnameFiles(name string) map[string]string {
	files := map[string]string{"hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"}
	if name != "" {
		files["hosts"] += "127.0.1.1\t" + name + "\n"
		files["hostname"] = name + "\n"
	}
	return files
}
