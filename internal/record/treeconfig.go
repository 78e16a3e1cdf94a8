package record

import (
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// TreeConfig is the part of a sandbox's configuration that rootfs needs to open a tree for a
// sandbox that is up. The launcher's own rights open the tree.
func (r Record) TreeConfig(in Roots) rootfs.Config {
	return rootfs.Config{
		Private:  in.Private(),
		IDBase:   r.IDBase,
		Hostname: r.Config.Hostname,
		User:     rootfs.User{UID: r.Config.User.UID, GID: r.Config.User.GID, Home: spec.HomePath},
	}
}
