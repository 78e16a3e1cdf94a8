// Package patch writes what a sandbox has changed as a unified diff in git's
// form. `git apply` takes it, and `patch -p1` takes a diff of text files.
//
// [Write] writes a diff that is exact and meant to be kept; for a terminal it
// goes through [Terminal], since what is in it was written by the sandbox.
//
// A patch has regular files, symbolic links, and the executable bit. A hard link
// is a file of its own. A file is binary if its first 8000 bytes hold a NUL, as
// in git. It is a git binary patch of two literals: the second one is for
// `git apply -R`. The ids in it are of SHA-1, so git refuses it in a repository
// with SHA-256. A short patch names a binary file instead, in its place:
// "Binary files a/x and b/x differ".
//
// What a patch cannot have is named in it, in lines that both tools skip, and
// is told to [Tree].LeftOut:
//
//   - at the top, empty directories, special files, owners, other modes, hard
//     links and extended attributes;
//   - in its place, a file of more than 16 MiB: "# Too large".
//
// Where such a file is replaced by what is no file, what replaces it is left out
// too, as a comment. So are names for which git apply would refuse the whole
// patch, such as .git/HEAD: they are to be seen in a review all the same.
//
// GNU patch removes files only when it has done all else. So it cannot turn a
// directory into a file or a file into a directory; git apply can, and a line at
// the top names the path. Nor does it take names of more than 247 bytes.
//
// Like what it reads, the package is for hostile content: memory and time are
// bounded by the sizes above, however large the layer. A text file of more than
// 262,144 lines is replaced as a whole, since a comparison would take longer. A
// patch of 1023 MiB is an error, since git apply refuses it.
package patch
