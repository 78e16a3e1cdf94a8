// Package autorun knows the paths whose content runs without a question: hooks, shell
// start files, units, tasks of editors. It also knows the modes and owners that weaken
// protection.
//
// For most uses make a [Marker] with [New] and ask it about each change. The table of
// paths is data: [Entries] returns it, and docs/autorun.md shows it.
//
// The package knows names. It does not read the content of a file, so it does not see
// that a configuration names another file as a program. It opens no file and knows no
// sandbox.
package autorun
