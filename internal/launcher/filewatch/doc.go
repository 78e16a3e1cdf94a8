// Package filewatch tells which files of a sandbox change while a command runs: those of
// the sandbox's store, as the sandbox sees them, and those of writable binds.
package filewatch
