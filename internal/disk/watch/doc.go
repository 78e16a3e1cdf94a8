// Package watch tells changes in file systems while somebody watches: names that came,
// went or were written to. Its cost grows with the changes, not with the size of the file
// system, since the kernel tells them (fanotify(7), with names and file handles: Linux
// 5.17).
//
// For most uses: a [Group], the file systems to watch added to it, a [Recording] from
// before a command until after it.
//
// The kernel tells the names of directories' entries, and files that were opened for
// writing, with handles of the files. The package opens no files, and looks a name up only
// when a recording ends. Many events cost bounded memory and time: a recording then says
// that it is not whole.
//
// The package knows nothing of sandboxes. A change of an overlay is a change of its upper
// layer.
package watch
