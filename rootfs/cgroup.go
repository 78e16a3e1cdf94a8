package rootfs

import (
	"fmt"
	"os"
)

// Cgroup is a detached mount of a cgroup for [Config.Cgroups]. The mount is read-only.
type Cgroup struct {
	// Name is the directory below /sys/fs/cgroup. If it is empty, the mount is attached at
	// /sys/fs/cgroup itself.
	Name string
	// Links are symbolic links to the directory, beside it.
	Links []string
	Mount *os.File
}

// cgroups attaches mounts at /sys/fs/cgroup of a root. The rest of /sys stays empty.
func (b *builder) cgroups(root *node, all []Cgroup) error {
	if root.kind == bindNode {
		return b.cgroupsOver(all)
	}
	if len(all) == 0 {
		return nil
	}
	return withOpen(b.base, "root/sys", func(sys int) error { return b.cgroupsIn(sys, all) })
}

// cgroupsOver attaches a /sys over that of an overlaid root, to which the sandbox can write.
func (b *builder) cgroupsOver(all []Cgroup) error {
	if err := b.directory(b.base, "sys", newDir()); err != nil {
		return err
	}
	return withOpen(b.base, "sys", func(sys int) error {
		if err := b.cgroupsIn(sys, all); err != nil {
			return err
		}
		return withOpen(b.base, "root/sys", func(at int) error { return attachReadOnly(sys, at) })
	})
}

func (b *builder) cgroupsIn(sys int, all []Cgroup) error {
	if len(all) == 0 {
		return nil
	}
	top := newDir()
	for _, c := range all {
		if c.Name == "" {
			continue
		}
		top.addChild(c.Name, newDir())
		for _, link := range c.Links {
			top.addChild(link, &node{kind: linkNode, text: c.Name})
		}
	}
	fs := newDir()
	fs.addChild("cgroup", top)
	if err := b.directory(sys, "fs", fs); err != nil {
		return err
	}
	for _, c := range all {
		if err := b.cgroup(sys, c); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

func (b *builder) cgroup(sys int, c Cgroup) error {
	return withOpen(sys, "fs/cgroup/"+c.Name, func(at int) error {
		return os.NewSyscallError("move_mount", move(int(c.Mount.Fd()), at))
	})
}
