// Package builder runs the parts that read an image's content in a child process without rights: it
// inflates layers ([Inflate]) and makes the index of an image ([Index]).
//
// The child is this program again ([TakeOver]). It is another user without capabilities
// (internal/process/worker). It can read and write the descriptors that it was given. It can open no file, make
// no socket and no process, and reach no other process. Its memory, its CPU time and the size of its
// output have bounds. It ends together with its parent.
//
// The content of a layer is hostile, and so is the output of the child: the caller must check the output.
// The package does not know stores, users or registries.
package builder
