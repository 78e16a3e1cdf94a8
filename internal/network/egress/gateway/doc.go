// Package gateway is the worker of the proxied network: the process that answers the queries and serves
// the connections of all sandboxes. Its parent ([internal/network/egress]) sends sockets and rules, and gets
// names, counts and events. The worker decides nothing for longer than it lives: another worker goes on
// with the same sockets, rules and names.
//
// The worker reads everything that a sandbox sends, so it may be taken over. It has no privilege, can
// execute no program, sees no process, and reads only the files that its resolver needs. It ends with
// its parent.
package gateway
