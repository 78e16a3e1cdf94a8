// Package streams connects the three standard streams of a command with readers and writers
// of the caller: pipes, the copying between them, and bounded captures of output.
package streams
