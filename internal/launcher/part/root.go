package part

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// planRoot chooses the part of the host that the sandbox sees.
func (m *Making) planRoot(context.Context) error {
	c := m.Request.Config
	r := rootfs.Config{
		Dir:         c.Rootfs,
		Image:       m.Image.Tree,
		Writable:    c.Writable,
		Workspace:   c.Workspace,
		Files:       m.From.Files,
		Peer:        m.From.Peer(),
		Private:     m.parts.Private(),
		IDBase:      m.Record.IDBase,
		NameServer:  spec.NameServer,
		Hostname:    c.Hostname,
		User:        rootfs.User{UID: c.User.UID, GID: c.User.GID, Home: spec.HomePath},
		Overlays:    c.Overlays,
		Home:        m.Request.Home,
		HostMounts:  m.HostMounts,
		Packages:    m.parts.Packages,
		Copies:      m.parts.Copies,
		Areas:       []rootfs.Area{{Name: "tmp", Target: "/tmp", Mode: 0o1777}, {Name: "home", Target: spec.HomePath, Mode: 0o755}},
		MountPoints: []string{"/run"},
	}
	takeSearch(&r, c.Network)
	if c.Workspace == "" {
		r.Areas = append(r.Areas, rootfs.Area{Name: "workspace", Target: spec.WorkspacePath, Mode: 0o755})
	}
	if ownVarTmp(c) {
		r.Areas = append(r.Areas, rootfs.Area{Name: "var-tmp", Target: "/var/tmp", Mode: 0o1777})
	}
	if slices.Contains(c.Overlays, "/") { // scripts of packages, such as adduser(8), write there
		r.Areas, r.MountPoints = append(r.Areas, rootfs.Area{Name: "run", Target: "/run", Mode: 0o1777}), nil
	}
	for _, b := range c.Binds {
		r.Binds = append(r.Binds, rootfs.Bind(b))
	}
	for i, dir := range m.Image.Config.Directories() {
		r.Areas = append(r.Areas, rootfs.Area{Name: fmt.Sprintf("volume-%d", i), Target: dir, Mode: 0o755})
	}
	if c.Rootfs == "" && c.Image == "" {
		found, err := r.Peer.FindLanguages(m.Request.Path, m.Request.Home, r.Binds, m.parts.Absences)
		if err != nil {
			return err
		}
		r.Prefixes, m.languages = found.Prefixes, found
		m.Record.Path, m.Record.PathNotes = found.Path, found.Notes
	}
	for _, v := range m.views {
		r.Cgroups = append(r.Cgroups, rootfs.Cgroup(v))
	}
	m.plan = r
	return nil
}

// ownVarTmp says whether the sandbox gets a /var/tmp of its own. The host's own root has no /var.
// A root directory, a bind or an overlay of /var or /var/tmp has the user's files there.
func ownVarTmp(c spec.Config) bool {
	taken := slices.Clone(c.Overlays)
	for _, b := range c.Binds {
		taken = append(taken, b.Target)
	}
	return c.Rootfs == "" && c.Image == "" && !slices.ContainsFunc(taken, func(dir string) bool {
		return dir == "/" || dir == "/var" || dir == "/var/tmp"
	})
}

// openRoot opens the files of the root.
func (m *Making) openRoot(context.Context) (err error) {
	if m.top, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", m.plan.Store.Fd())); err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	m.atEnd(m.top.Close)
	if m.root, err = openRootfs(m.plan); err != nil {
		return err
	}
	m.atEnd(m.root.Close)
	m.users, m.Stamps = m.root.TakeUserNamespace(), m.root.Stamps()
	m.atEnd(m.users.Close)
	return m.checkSharing()
}

// openRootfs is [rootfs.Open]. Before Linux 6.15 the kernel copies no part of a detached mount (open_tree(2)). Then the image
// is attached first, in the mount namespace of a thread.
func openRootfs(c rootfs.Config) (*rootfs.Root, error) {
	root, err := rootfs.Open(c)
	if c.Image == nil || !errors.Is(err, unix.EINVAL) {
		return root, err
	}
	return openAttached(c)
}

func openAttached(c rootfs.Config) (root *rootfs.Root, err error) {
	thread, err := mountns.Start()
	if err != nil {
		return nil, err
	}
	defer thread.Stop()
	err = thread.Do(func() error {
		if err := os.MkdirAll(record.Stage, 0o700); err != nil {
			return err
		}
		if err := mountns.Attach(c.Image, record.Stage); err != nil {
			return err
		}
		if c.Image, err = os.Open(record.Stage); err != nil {
			return err
		}
		defer c.Image.Close()
		root, err = rootfs.Open(c)
		return err
	})
	return root, err
}
