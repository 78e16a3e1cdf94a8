// Package idrange gives each sandbox of the host a range of host user ids of its own.
package idrange
