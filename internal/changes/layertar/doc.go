// Package layertar writes the changes of a sandbox as a layer of an OCI image: a tar
// archive whose entries replace those below, in which ".wh.NAME" stands for a deleted NAME
// and ".wh..wh..opq" in a directory for all of its earlier content (image-spec v1.1.1
// layer.md "Whiteouts").
//
// The archive is in PAX format, with extended attributes as SCHILY.xattr.*, as GNU tar,
// containerd and Docker have them, and with times to the nanosecond. Its entries are in
// the order of their paths, and the same layer gives the same bytes. Devices and sockets
// are left out and told of. A file that an archive cannot have, or not without loss, is an
// error that names it.
//
// It is written as it is read, a file at a time. The package does not read archives, and
// does not compress.
package layertar
