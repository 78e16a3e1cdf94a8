// Package configflags turns command-line flags into the configuration of a sandbox. Several
// commands share the flags.
package configflags
