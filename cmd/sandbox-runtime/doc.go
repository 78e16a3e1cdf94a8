// Command sandbox-runtime runs programs nobody trusts in sandboxes, and stands
// in for runc below Docker, containerd and podman.
//
// This package is the command line and no more: it parses flags, moves bytes,
// signals and terminals between the caller and a container, and words errors.
// What a container is belongs to internal/container, what a sandbox is to
// internal/launcher, which commands use by package sandbox, as embedders do. Each command is one file; commands return errors and main
// alone turns them into messages and an exit status.
package main
