package cgroups

import (
	"io/fs"
	"os"
	"slices"
	"strconv"
)

// On v1 the buffers of TCP and UDP sockets are no memory of a group but a budget
// beside it (cgroup-v1/memory.rst, "Kernel Memory Extension"). Only a group in which
// the limit was ever written counts the sockets that are made in it then
// (mm/memcontrol-v1.c memcg_update_tcp_max()), for itself and for those above it. So
// each leaf is made to count, and its group has the limit.
//
// On v2 these buffers are memory as any other.
const (
	socketFile   = "memory.kmem.tcp.limit_in_bytes"
	countSockets = "-1" // without a limit of one's own
)

// LimitSockets bounds the buffers of all TCP and UDP sockets that are made in the
// leaves of the group, in bytes. On v2, where the limit of memory does so, and on a
// kernel that cannot (Limits.Sockets), it does nothing.
func (g *Group) LimitSockets(bytes int64) error {
	t, ok := g.host.v1("memory")
	if !ok || g.host.Mode == V2 {
		return nil
	}
	return g.failed("limit sockets of", t.writeSockets(g.path, strconv.FormatInt(bytes, 10)))
}

func (t tree) writeSockets(group, value string) error {
	return t.withDir(group, func(dir *os.File) error {
		return ignore(writeFile(dir, socketFile, value), fs.ErrNotExist)
	})
}

// countSockets has a new leaf count its sockets, before anything is in it.
func (p place) countSockets(leaf string) error {
	if p.tree.v2 || !slices.Contains(p.tree.controllers, "memory") {
		return nil
	}
	return ignore(p.write(leaf+"/"+socketFile, countSockets), fs.ErrNotExist)
}
