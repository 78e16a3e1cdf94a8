// Package container starts and keeps OCI containers: create, start, signal, state, exec,
// destroy. It is the one package that imports libcontainer, which promises its importers
// nothing. All other packages of this module see only the types declared here and those of
// the runtime spec.
//
// A program that imports it is re-executed for each start as "PROGRAM init"; the package
// takes over before main is reached (see takeover.go). It needs cgo and the build tag
// seccomp.
//
// It does not decide about a container's rights: it carries out a finished OCI spec, and
// the author of that spec has the caller's full rights. It takes no terminals, forwards no
// signals and reaps only processes that it starts.
package container
