// Package connection connects a command line to the launcher that makes its sandboxes: the launcher on
// a socket, or one inside this process. It decides between the two by the flags and the user, and tells
// a user without the right to see the sandboxes. The commands themselves are in the packages above.
package connection
