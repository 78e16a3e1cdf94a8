package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/conffiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/etcfiles"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

const (
	// UserName is the name of the sandbox's user in the generated passwd.
	UserName = etcfiles.UserName

	// WorkspaceTarget is where the workspace is attached.
	WorkspaceTarget = "/workspace"

	// IDCount is the number of ids in a sandbox's range.
	IDCount = userns.IDCount
)

// Config describes a root. All paths are absolute.
type Config struct {
	// Dir is a directory whose top-level entries become the root, read-only, except its
	// own dev, proc, sys, tmp, run and workspace. Nothing is written to it. Empty: the
	// host's own /usr and its companions, with a reduced /etc.
	Dir string

	// Image is the root directory of a mounted image, which becomes the root as Dir does. The sandbox gets its own
	// /etc/hosts, hostname and resolv.conf where the image has files of these names. The file stays the caller's.
	Image *os.File

	// Writable has the root be an overlay of the image, as one of Overlays is at its own path.
	Writable bool

	// Prefixes are directories shown read-only at their own path, as
	// FindLanguages names them.
	Prefixes []string

	// Binds are host paths the user named.
	Binds []Bind

	// Workspace is a directory attached read-write at WorkspaceTarget. Empty:
	// none, and the caller lists WorkspaceTarget in MountPoints.
	Workspace string

	// WorkspaceRoots are the directories outside of which nothing may be
	// writable. Empty: no such rule.
	WorkspaceRoots []string

	// Overlays are directories that are shown at their own paths. Writes to their files do
	// not change them, but go to layers in Store. "/" is the whole root: each directory of
	// the host at its own path.
	Overlays []string

	// Store is a detached mount of an empty file system, for the sandbox's writes. It
	// stays the caller's. StoreMapped says that its ids are those of the inside; otherwise
	// they are the kernel's.
	Store       *os.File
	StoreMapped bool

	// HostMounts has the root keep the stamps of the host's files that it shows: [Root.Stamps].
	HostMounts *HostMounts

	// Packages reads the configuration files of the host's packages. Nil: it is read for this root, from
	// dpkg alone.
	Packages *conffiles.Reader

	// Copies opens a directory of the runtime's own for copies of small files of the host's /etc, which many
	// roots show. Only root and this process's user can change the directory. Nil or an error: the root has
	// copies of its own.
	Copies func() (*os.File, error)

	// Areas are directories of the sandbox's own, in Store.
	Areas []Area

	// Home is the caller's home directory, in which secrets are looked for.
	Home string

	// Private are the runtime's own directories. A directory that is, contains or lies
	// inside one of them is not shown; an overlay shows them empty.
	Private []string

	// MountPoints are directories over which the caller mounts something after
	// Root.Mount. /proc, /sys and /dev always are among them.
	MountPoints []string

	// Cgroups are shown at /sys/fs/cgroup. Their mounts stay the caller's.
	Cgroups []Cgroup

	// Files are descriptors of Dir, Workspace, the overlays and the binds' sources, by the
	// given paths. The caller has opened them, and the paths are not opened again. Nobody
	// reads from them, and they stay the caller's.
	Files map[string]*os.File

	// Peer is the caller, if it is neither root nor this process's own user. Then there
	// must be a descriptor for each path.
	Peer *Peer

	// User is the sandbox's user, in ids of the inside.
	User User

	// NameServer is the address in the generated resolv.conf. Empty: there is no such file.
	NameServer string
	// Search and ResolverOptions are the search domains and the options of the generated resolv.conf.
	Search, ResolverOptions []string
	// Hostname goes into the generated hosts and hostname.
	Hostname string

	// IDBase is the host's id of the sandbox's id 0; id i is IDBase+i, for
	// IDCount ids.
	IDBase uint32
}

// User is the user a sandbox's commands run as.
type User struct {
	UID, GID uint32
	Home     string
}

func (c *Config) ownEtc() etcfiles.Own {
	return etcfiles.Own{
		UID: c.User.UID, GID: c.User.GID, Home: c.User.Home, Hostname: c.Hostname,
		NameServer: c.NameServer, Search: c.Search, ResolverOptions: c.ResolverOptions,
	}
}

func (u User) owner() userns.Owner { return userns.Owner{UID: u.UID, GID: u.GID} }

// Bind shows the host's file or directory Source at Target.
type Bind struct {
	Source, Target string
	Writable       bool
}

// Area is a directory of the sandbox's own, of the sandbox's user unless Mode
// opens it to everybody.
type Area struct {
	// Name is the directory's in the store, below area.
	Name, Target string
	Mode         uint32
}

// ForbiddenError is [hostpaths.ForbiddenError].
type ForbiddenError = hostpaths.ForbiddenError

func (c *Config) validate() error {
	if c.IDBase < IDCount || c.IDBase > 1<<32-1-IDCount {
		return fmt.Errorf("id range from %d: it must lie between %d and 2^32-1", c.IDBase, IDCount)
	}
	if c.User.UID >= IDCount || c.User.GID >= IDCount {
		return fmt.Errorf("user %d:%d: ids in a sandbox are below %d", c.User.UID, c.User.GID, IDCount)
	}
	if strings.ContainsAny(c.User.Home, ":\n") {
		return fmt.Errorf("home %q: no colon or line break may be in it", c.User.Home)
	}
	if strings.ContainsAny(c.Hostname, " \t\n#") {
		return fmt.Errorf("hostname %q: no space, line break or # may be in it", c.Hostname)
	}
	if err := c.ownEtc().Validate(); err != nil {
		return err
	}
	if err := c.Peer.validate(); err != nil {
		return err
	}
	for _, p := range c.MountPoints {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
			return fmt.Errorf("mount point %q: must be an absolute, clean path below /", p)
		}
	}
	for _, b := range c.Binds {
		if err := b.validate(); err != nil {
			return err
		}
	}
	if c.Store == nil && (c.Writable || len(c.Overlays)+len(c.Areas) > 0) {
		return errors.New("overlays and areas need a store to lie in")
	}
	if c.Writable && c.Image == nil {
		return errors.New("only the root of an image can be writable")
	}
	return c.validateOverlays()
}

func (c *Config) validateOverlays() error {
	for _, dir := range c.Overlays {
		switch {
		case !path.IsAbs(dir) || path.Clean(dir) != dir || strings.ContainsRune(dir, 0):
			return fmt.Errorf("overlay %q: must be an absolute, clean path", dir)
		case dir != "/":
		case c.Peer != nil:
			return &ForbiddenError{Path: "/", Rule: "is the whole host, which only root may have overlaid; name the directories that are needed"}
		case c.Dir != "" && c.Dir != "/":
			return fmt.Errorf("overlay /: the root is %s, and there is one root only; leave one of the two out", c.Dir)
		}
	}
	return nil
}

// validate checks the target as text; where it leads is checked when placed.
func (b *Bind) validate() error {
	switch {
	case !path.IsAbs(b.Target):
		return fmt.Errorf("bind target %q: must be absolute", b.Target)
	case path.Clean(b.Target) != b.Target:
		return fmt.Errorf("bind target %q: write it as %s", b.Target, path.Clean(b.Target))
	case b.Target == "/":
		return fmt.Errorf("bind target /: use --rootfs for a root of your own")
	case strings.ContainsRune(b.Target, 0):
		return fmt.Errorf("bind target %q: has a NUL byte", b.Target)
	}
	return targetAllowed(b.Target)
}

// targetAllowed refuses targets that the runtime mounts in every sandbox.
func targetAllowed(target string) error {
	for _, r := range hostpaths.Reserved {
		if hostpaths.Within(target, r) {
			return fmt.Errorf("bind target %s: %s is the sandbox's own; bind to another place, such as /mnt%s", target, r, target)
		}
	}
	return nil
}
