// Package files is how a program outside reads and writes the files of a
// sandbox: a small server inside, which cmd/sandbox-files is, that has the
// rights of the sandbox's user and no others, and a [Client] outside. They speak
// over two pipes: each frame is a length and that many bytes, each request has a
// number, and each answer the number of its request. A file or a directory that
// is long is asked for piece by piece, so that neither end ever has more to hold
// than it asked for.
//
// To the client the server is hostile: whoever runs inside can stop and kill it.
// Lengths, names, numbers and kinds are checked, a wait ends with its context,
// and a server that is silent is noticed and given up.
//
// What it is not for: files of the host. Nothing here opens any, but for a tree
// that somebody has opened as an [os.Root].
package files
