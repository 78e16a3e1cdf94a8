// Package jobs runs commands in sandboxes. A [Session] is the connection of this process
// to one sandbox: its agent, the cgroups made ahead for the next commands, the watch of its
// files. A [Process] is a command: attached to its caller, or detached with its output kept
// on the host.
//
// A session can be made again at any time, so an idle session is dropped after some seconds.
package jobs
