// Package store makes the bounded file systems that hold the writes of sandboxes: in
// memory, or in an image on disk.
//
// For most uses: [Memory], or once [CreateImage] and then [MountImage], and [Usage] of the
// store. Each store has a number of bytes and one of files. Past either a write inside
// ends with ENOSPC, and no other store notices.
//
// A store is a detached mount: no path leads to it, in no mount namespace, and it lasts as
// long as a descriptor of it is open or a part of it is attached somewhere. Its root
// belongs to root and is closed to all other users.
//
// The package does not know the content of a store, sandboxes or their ids.
package store
