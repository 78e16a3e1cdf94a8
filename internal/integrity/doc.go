// Package integrity finds out whether the kernel has lost writes of a sandbox. A write to a
// sandbox's image can succeed and be lost later, when the host's disk is full or broken.
// PID 1 of the sandbox holds a file that was opened before any such error, and this package
// asks that file.
package integrity
