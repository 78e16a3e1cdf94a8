// Package handed keeps and empties the stores of sandboxes that clients may hold.
//
// A client can keep the store of a sandbox: by the descriptors of the layers that it asked for, and
// by files that a process inside has sent to it. The second way is open to each client, and counts
// for clients with a rule. A removal frees the space of the store nevertheless: it shuts down and
// truncates an image ([store.RemoveImage]), and empties a store in memory. An empty file system
// remains, with the deleted files that the client has open. This rest counts as one of the
// user's sandboxes until the client closes its descriptors.
package handed
