// Package protocol is the protocol of a launcher: the messages, their framing on a socket,
// and the client. It needs no privilege and no cgo, so that any program can import it.
// internal/launcher carries the requests out.
//
// A launcher takes each client for hostile. A client trusts the launcher: the user that
// runs the launcher could read and stop all of the client's commands anyway.
package protocol
