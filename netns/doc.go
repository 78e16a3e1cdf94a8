// Package netns makes network namespaces. So far of one kind, for a sandbox
// without network; connecting one with the world is to come.
package netns
