// Package process names processes so that a reused process number is noticed, and ends
// them by pidfd.
package process
