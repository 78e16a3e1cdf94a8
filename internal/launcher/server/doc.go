// Package server serves a launcher to other processes: it speaks the protocol of
// internal/launch, knows who is at the other end of each connection, and holds
// each to its rules.
//
// All that a client sends is hostile. What it may ask for is decided here; how
// that is done is internal/launcher's. Nothing that one client, or one sandbox,
// does or leaves undone makes another wait.
package server
