// Package launch is what a launcher is asked and what it answers: the messages,
// their framing on a socket, and the client. It needs no privilege and no cgo,
// so that any program can import it; what carries the requests out is
// internal/launcher.
//
// A launcher treats every client as somebody who wants more than it may have, a
// client takes a launcher's word: whoever runs the launcher could read and stop
// all that the client has running there anyway.
package launch
