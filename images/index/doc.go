// Package index builds the root file system of an image from the tar archives of its
// layers. The result is an EROFS image without file content, the index. Regular files in
// the index refer to the archives, which are further devices of the mount. So nothing is
// unpacked, and the archives stay as their digests describe them.
//
// [Build] merges the layers as image-spec v1.1.1 layer.md describes it:
//
//   - A whiteout removes entries of lower layers only, in any order of the entries.
//   - An entry replaces the entry of the same path, except that a directory keeps the
//     content of a directory.
//   - The parent of an entry is looked up in the tree so far. Symbolic links are followed
//     and never leave the root. A missing parent is made, with mode 0755 and owner 0:0.
//     An entry never changes the metadata of its parent.
//   - A hard link is a second name of the same inode, also where the other name is in a
//     lower layer.
//   - A name with "..", or an absolute one, is taken as a path below the root.
//   - A sparse file is copied into the index, without its holes.
//
// The mount points that a sandbox needs are added. These are always directories: /dev,
// /proc, /run, /sys, /tmp and /workspace.
//
// The extended attributes user.*, trusted.*, security.capability and POSIX ACLs are kept. All
// others are left out, and so are the private ones of overlayfs: an image must not tell
// the kernel how layers are stacked, or give labels of the host's security module.
//
// The archives are hostile. Any type of entry that is not in the list of the supported ones
// is an error, and [Limits] bound time, memory and disk. The same archives give the same
// bytes. The package knows no store, no registry and no compression, and mounts nothing.
package index
