// Package patch writes the changes of a sandbox as a unified diff in git's form.
// `git apply` takes the diff, and `patch -p1` takes a diff of text files.
//
// [Write] writes an exact diff. On a terminal the diff must go through [Terminal]: the
// sandbox has written its content.
//
// A patch has regular files, symbolic links, and the executable bit. A hard link
// is a file of its own. A file is binary if its first 8000 bytes hold a NUL, as
// in git. It is a git binary patch of two literals: the second one is for
// `git apply -R`. The ids in it are of SHA-1, so git refuses it in a repository
// with SHA-256. A short patch names a binary file instead, in its place:
// "Binary files a/x and b/x differ".
//
// A patch cannot hold the following. It names them in lines that both tools skip, and
// [Write] calls [Tree].LeftOut for each path:
//
//   - at the top, empty directories, special files, owners, other modes, hard
//     links and extended attributes;
//   - in its place, a file of more than 16 MiB: "# Too large".
//
// If a directory, link or special file replaces such a file, the replacement is left out,
// too, and is a comment. So are names that make git apply refuse the whole patch, such as
// .git/HEAD: a reviewer must still see them.
//
// GNU patch removes files last. So it cannot turn a directory into a file or a file into
// a directory. git apply can, and a line at the top names the path. GNU patch does not
// take names of more than 247 bytes either.
//
// The package is for hostile content: the sizes above bound memory and time for layers of
// any size. A text file of more than
// 262,144 lines is replaced as a whole, since a comparison would take longer. A
// patch of 1023 MiB is an error, since git apply refuses it.
package patch
