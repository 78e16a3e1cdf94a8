// Package store makes the bounded file systems that hold what sandboxes write:
// in memory, or in an image on disk.
//
// For most uses: [Memory], or once [CreateImage] and then [MountImage], and
// [Usage] of what they gave. Each store has a number of bytes and one of files;
// past either a write inside ends with ENOSPC, and no other store notices.
//
// A store is a detached mount: no path leads to it, in no mount namespace, and it
// lasts as long as a descriptor of it is open or something of it is attached
// somewhere. Its root belongs to root and is closed to everybody else.
//
// It knows nothing of what lies in a store, of sandboxes and of their ids.
package store
