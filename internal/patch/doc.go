// Package patch writes what a sandbox has changed as a unified diff in git's
// form, which `git apply` and `patch -p1` take.
//
// [Write] writes a diff that is exact and meant to be kept; for a terminal it
// goes through [Terminal], since what is in it was written by the sandbox.
//
// A patch has regular files of text, symbolic links, and the executable bit.
// Hard links are files of their own. What it cannot have is named in it, in lines
// that both tools skip:
//
//   - at the top, empty directories, special files, owners, other modes and
//     extended attributes;
//   - in its place, a file that is binary, which it is with a NUL in its first
//     8000 bytes, as git has it: "Binary files a/x and b/x differ"; and one of
//     more than 16 MiB, or edited and of more than 262,144 lines: "# Too large".
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
// bounded by the sizes above, however large the layer.
package patch
