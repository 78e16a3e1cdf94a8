// Package channel sends frames of bytes, with descriptors beside them, between two processes over a Unix socket. It does
// not know the content of the frames. The process at the other end may be hostile.
package channel
