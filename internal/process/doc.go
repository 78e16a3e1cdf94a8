// Package process names processes so that a reused process number is noticed, and ends them by pidfd. It also finds out
// why a program cannot be executed: execve(2) has one error, ENOENT, for a missing program and for a program whose
// interpreter, loader or link target is missing.
//
// Untrusted code may have made the files of a program. So they are opened below a held root, only regular files are read,
// and a bounded part of each is read. The result is for messages: the files can change at any time.
package process
