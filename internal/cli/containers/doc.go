// Package containers has the commands of runc that work on OCI containers and on sandboxes: list, ps,
// pause, resume, update, state, delete and exec. It decides whether a name means a container or a
// sandbox. Package oci has the same commands for OCI containers alone.
package containers
