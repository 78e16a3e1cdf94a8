// Package doctor looks for the features that a host offers and lacks for sandboxes, and
// proves the walls of sandboxes: a sandbox looks at its own walls from inside, and the
// package judges the findings outside. The command itself is in
// internal/cli/admin.
package doctor
