// Package sandbox runs code nobody trusts from a Go program. It needs no cgo
// and no privilege of its own: a launcher, which is the sandbox-runtime binary
// in another process, holds what privilege sandboxes take.
//
// For most uses: make one [Manager], [Manager.Create] a sandbox, [Sandbox.Run]
// shell lines in it, [Sandbox.Close] it.
//
//	m, err := sandbox.NewManager(sandbox.ManagerConfig{})
//	sb, err := m.Create(ctx, sandbox.Config{Workspace: "./proj"})
//	defer sb.Close()
//	result, err := sb.Run(ctx, "npm test")
//
// The zero [Config] is the safest sandbox there is: the host's programs
// read-only, an empty workspace, no network, limits on all that can be used up.
// The fields of [Config], [Limits] and [Result], with their units and defaults, are
// described where these are defined: in package spec.
//
// # Errors and results
//
// An error says that the sandbox failed; what became of a command is a
// [Result], whatever that is: it timed out, ran out of memory, was not found.
// Errors about one sandbox are an [*Error], which names it and the way out;
// conditions are told apart with [errors.Is] and the Err values.
//
// # Life
//
// A sandbox lives until it is removed: it survives the end of the Manager, of
// the program and of the launcher, and is found again by its id with
// [Manager.Get], by this or another process. [Tied] makes one that ends with
// its Manager. A sandbox that is asked for by a program which runs in another
// sandbox is nobody's child: the two have nothing of each other.
//
// # Concurrency
//
// All types may be used by several goroutines at once, unless they say
// otherwise. One sandbox runs any number of commands at the same time.
//
// # Without isolation, and for tests
//
// Sandboxes are made by a [Provider]. The provider "isolated" is the one that
// is used unless another is named. "local" runs commands on the host with no
// isolation whatsoever, and is never a fallback. Package sandboxtest has one
// that runs nothing, for tests of programs that embed this package.
package sandbox
