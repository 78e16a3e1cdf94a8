// Package containers has the commands of runc that work on OCI containers and on sandboxes: list, ps,
// pause, resume, update, state, delete and exec. It decides which of the two a name means. What these
// commands do on OCI containers alone is in package oci.
package containers
