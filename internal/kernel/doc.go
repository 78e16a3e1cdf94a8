// Package kernel tells what the running kernel, and the user, container and
// settings this process runs under, let a sandbox have.
//
// Every answer comes from trying, never from a version number: a [Feature] is
// probed by a short-lived child process that makes the system calls in
// question in namespaces of its own and is gone, with all it made, when the
// answer is there. [Feature.Check] answers for one, [Required] for all that no
// sandbox can do without, [Survey] for everything. What a feature is for,
// which kernel brought it and how to get it is one table, [Features].
//
// What it is not: a place for what sandboxes do. Nothing here is needed to
// start one, and no result is kept: settings change under a running host.
package kernel
