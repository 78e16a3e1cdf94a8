// Command sandbox-runtime runs untrusted programs in sandboxes, and replaces runc below
// Docker, containerd and podman.
//
// This package is the command line and no more: it parses flags, calls the packages that
// do the work, and words errors. Containers are the work of internal/container, sandboxes
// of internal/launcher, which commands use through package sandbox, as embedders do. Each
// command is one file; commands return errors and main alone turns them into messages and
// an exit status.
package main
