// Package admin has the commands for the administrator of a host: launcher, prune and doctor. Package
// doctor has the checks of the last one.
package admin
