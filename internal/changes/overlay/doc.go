// Package overlay keeps the files of a sandbox in layers above the host's files, and
// changes which layers there are: a transaction writes to layers of its own and then joins
// the sandbox's files, or vanishes; a snapshot freezes layers; a fork begins with the
// layers of a snapshot; a discard throws layers away.
//
// A renamed directory of the host is copied to the layer before anybody reads the layer
// ([Files.MakeWhole]).
//
// The record of a sandbox says which change is under way. So a process can finish the
// half-done work of a killed process, or take it back.
package overlay
