// Package record holds the facts of a sandbox that cannot be asked of the kernel: the
// record in the sandbox's directory, and the paths and names that follow from the
// launcher's two directories. A [Sandbox] is a record together with the sandbox's cgroup
// and PID 1; any process of the launcher's user can have one.
//
// The package changes nothing in a sandbox.
package record
