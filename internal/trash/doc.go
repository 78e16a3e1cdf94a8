// Package trash removes images, snapshots and discarded layers in the background, since
// that can take long.
package trash
