// Package sandbox runs untrusted code from a Go program. It needs no cgo and no privilege:
// a launcher, the sandbox-runtime binary in another process, has the privilege.
//
// For most uses: make one [Manager], [Manager.Create] a sandbox, [Sandbox.Run] shell lines
// in it, [Sandbox.Close] it.
//
//	m, err := sandbox.NewManager(sandbox.ManagerConfig{})
//	sb, err := m.Create(ctx, sandbox.Config{Workspace: "./proj"})
//	defer sb.Close()
//	result, err := sb.Run(ctx, "npm test")
//
// The zero [Config] is the safest sandbox: the host's programs read-only, an empty
// workspace, no network, limits on all resources. docs/reference.md describes the fields of
// [Config], [Limits] and [Result], with units, defaults and bounds.
//
// # Errors and results
//
// An error says that the sandbox failed. The end of a command is a [Result], also if the
// command timed out, ran out of memory or was not found. An error about one sandbox is an
// [*Error], which names the sandbox and the way out. [errors.Is] with the Err values tells
// conditions apart.
//
// # Life
//
// A sandbox lives until it is removed. It survives the end of the Manager, of the program
// and of the launcher, and [Manager.Get] finds it by its id, from any process. [Tied]
// makes a sandbox that ends with its Manager. A program inside a sandbox may get sandboxes
// of its own: they are siblings, and neither sees anything of the other.
//
// # Concurrency
//
// All types may be used by several goroutines at once, unless they say otherwise. One
// sandbox runs any number of commands at a time.
//
// # Without isolation, and for tests
//
// A [Provider] makes sandboxes. The provider "isolated" is used unless another one is
// named. "local" runs commands on the host without any isolation, and is never a fallback.
// Package sandboxtest has a provider that runs nothing, for tests of programs that embed
// this package.
package sandbox
