// Package relay runs a command in a sandbox for the caller of this program: it passes the
// caller's streams, signals and terminal sizes to the command.
package relay
