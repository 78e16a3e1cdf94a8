// Package layer reads the writes of a sandbox: the upper layers of an overlay, and the
// host's tree below them.
//
// A [Stack] is the layers of one overlay. [Stack.Changes] lists the differences from the
// host's tree. It reads the layers, and looks at the host's tree once for each path.
// [Stack.Open] opens the content of a changed file, and [Stack.Below] describes the
// host's entry of a path. A stack of several layers, as forks have, reads like the
// overlay shows it.
//
// [Stamp] and [Origin] tell whether the host's tree is still the one that the sandbox
// saw: a stamp is of a path that an apply has written, an origin compares directories by
// their file handles. [Marks] lists the attributes that overlayfs sets on directories, for
// readers that may not read them.
//
// The sandbox has written all of a layer, and may go on writing while the layer is read.
// Paths are resolved from descriptors, follow no link and leave neither the layer nor
// the host's tree. Entries that vanish during a listing are left out.
//
// A directory of the base that was renamed inside has its content in the base still.
// [FindRenamed] finds such directories, and [MakeWhole] has the kernel copy the content to the
// layer. Before that a directory is an error of Changes, [ErrRenamed]. MakeWhole and
// [MakeOpaque] need the rights of root. All else writes nothing.
//
// A [Tree] is one directory of the host that a sandbox overlays, for the sandbox's owner: the [Overlay] of the launcher, the
// directory itself where the host has moved it, and the marks of changes that a person should look at (package autorun).
//
// [WriteTar] writes the changes as a layer of an OCI image, an archive. The same layer gives the same bytes. The
// package does not read archives, and does not compress.
//
// Layers with files without content, which the runtime's overlays never have, are an error.
package layer
