// Package layer reads what a sandbox has written: the upper layers of an
// overlay, and the host's tree that they lie on.
//
// A [Stack] is the layers of one overlay. [Stack.Changes] lists what is other
// than in the host's tree, from the layers alone and one look at the host's
// tree for each path; [Stack.Open] gives a changed file's content, and
// [Stack.Below] what the host has in its place. A stack of several layers, as
// forks have, reads like the overlay shows it.
//
// All that is in a layer was written by the sandbox, which may go on writing
// while it is read. Paths are resolved from descriptors, follow no link and
// leave neither the layer nor the host's tree. What is gone when it is its turn
// is left out.
//
// The package writes nothing. Layers with overlayfs features that the runtime's
// overlays do not have (redirects, files without content) are an error.
package layer
