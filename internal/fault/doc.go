// Package fault has the errors that a launcher and its clients share: conditions that callers decide on, and the form
// in which an error crosses the socket. It needs no privilege and no cgo, and knows neither the socket nor the requests.
package fault
