// Package kernel tells which features for sandboxes the running kernel has, and which the
// user, the container and the settings of this process allow.
//
// Every answer comes from trying, never from a version number: a short-lived child process
// makes the system calls of a [Feature] in namespaces of its own. The child is gone, with
// all that it made, when the answer is there. [CheckRequired] answers for all that no
// sandbox can do without, [Survey] for all features. One table, [Features], has the purpose
// of each feature, the kernel that brought it, and the way to get it.
//
// The package is not for the work of sandboxes. No start of a sandbox needs it, and no
// result is kept: settings change under a running host.
package kernel
