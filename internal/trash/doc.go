// Package trash removes in the background what takes long to remove: images, snapshots and
// discarded layers.
package trash
