// Package watch tells what was changed in file systems while somebody watched:
// which names came, went or were written to. It costs what is changed, whatever
// else a file system holds, since the kernel tells (fanotify(7), with names and
// file handles: Linux 5.17).
//
// For most uses: a [Group], the file systems to watch added to it, a [Recording]
// from before something runs until after it.
//
// What the kernel is told to tell is the names of directories' entries and what
// was opened for writing, with handles of the files: nobody's files are opened,
// and a name is looked up only when a recording ends. What happens in large
// numbers costs bounded memory and time: a recording then says that it is not
// whole.
//
// It knows nothing of sandboxes, and nothing of overlays, which are seen as what
// they do to their upper layers.
package watch
