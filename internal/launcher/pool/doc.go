// Package pool keeps items ready that take long to make: it makes them ahead of requests, checks
// them, and ends them when they are old or too many. It does not know what an item is.
package pool
