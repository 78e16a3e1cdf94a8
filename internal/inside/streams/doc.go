// Package streams connects the three standard streams of a command with readers and writers
// of the caller: pipes, the copying between them, and bounded captures of output. It also reads the files in which a
// sandbox keeps the output of a detached command: the head and the tail of a stream, with times. PID 1 writes these files
// (cmd/sandbox-agent/drain.c).
package streams
