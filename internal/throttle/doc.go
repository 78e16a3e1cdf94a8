// Package throttle lifts a sandbox's limits of disk traffic while a process has to end or
// freeze, and sets them again.
package throttle
