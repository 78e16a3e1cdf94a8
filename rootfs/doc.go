// Package rootfs puts together the root that a sandbox sees: read-only trees of the host,
// the workspace, binds, and a few generated files.
//
// For most uses: [Open] with a [Config], then [Root.Mount] on an empty directory in a
// private mount namespace, then [Root.Close].
//
// The root is a skeleton: a small tmpfs that holds directories, symbolic links, generated
// files and mount points, with trees of the host attached inside. Open opens every source
// once, checks it, and from then on uses only the held descriptor. So a path that is
// swapped after the check changes nothing. Targets are resolved in the planned tree, never
// by the kernel on a path: a symbolic link in a source, absolute or not, leads to a place
// in the sandbox.
//
// Every tree is attached nosuid, nodev, private and, unless writable, read-only, with all
// mounts below it. The owners of its files inside depend on the purpose of the tree:
//
//   - The host's own root and language prefixes are not idmapped: their owners
//     show as nobody, and no user of the sandbox, its root included, reads more
//     of them than any user of the host could.
//     They are shown through read-only overlays, so that locks and inotify
//     inside reach no program outside ([Refresh] shows later changes of the host).
//   - The directory of [Config.Dir] is idmapped so that an id on disk is the same
//     id inside.
//   - The workspace and binds are idmapped so that the owner of the source is the
//     sandbox's user: files made inside belong to that owner outside. No other
//     id is mapped.
//
// For a [Peer], a user with less than root's rights, the sources are descriptors that the
// peer opened, and files of other owners are mapped to nobody.
//
// A file system that cannot be idmapped (overlayfs, 9p, NFS) has a fallback that
// [Root.Notes] names. A Unix socket below any bind still connects, read-only or not; the
// package takes none as a source of its own, and cannot see one that lies deeper in a
// tree.
//
// It is not for images, writable layers or their changes, and it makes no namespace that
// outlives [Open].
package rootfs
