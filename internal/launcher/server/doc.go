// Package server serves a launcher to other processes: it speaks the protocol of
// internal/protocol, knows the user at the other end of each connection, and holds each user
// to a rule.
//
// All input of clients is hostile. This package decides about requests; internal/launcher
// carries them out. No client and no sandbox can make another client or sandbox wait.
package server
