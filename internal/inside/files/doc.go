// Package files reads and writes the files of a sandbox from outside: a small server
// inside, cmd/sandbox-files, with the rights of the sandbox's user and no others, and a
// [Client] outside. They speak over two pipes: each frame is a length and that many bytes,
// each request has a number, and each answer the number of its request. The client asks
// for a long file or directory piece by piece, so that neither end ever has to hold more
// than it asked for.
//
// To the client the server is hostile: code inside can stop and kill it. Lengths, names,
// numbers and kinds are checked, a wait ends with its context, and a silent server is
// noticed and given up.
//
// The package is not for files of the host. It opens none, except below a tree that the
// caller has opened as an [os.Root].
package files
