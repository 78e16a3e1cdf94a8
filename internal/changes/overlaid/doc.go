// Package overlaid reads one directory of the host that a sandbox overlays: the layers above
// the directory, the directory itself where the host has moved it, and the marks of changes
// that a person should look at.
package overlaid
