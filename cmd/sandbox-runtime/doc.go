// Command sandbox-runtime runs untrusted programs in sandboxes, and replaces runc below
// Docker, containerd and podman.
//
// This package has the list of the commands, the help text of the program, and the names
// for the completion. The commands are in packages by family below internal/cli, and in
// internal/container/oci. They parse flags, call the packages that do the work, and word
// errors: containers are the work of internal/container, sandboxes of internal/launcher,
// which commands use through package sandbox, as embedders do. Commands return errors, and
// main alone turns them into messages and an exit status.
package main
