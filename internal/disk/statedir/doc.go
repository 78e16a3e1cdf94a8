// Package statedir holds the directories in which a launcher keeps its state: the
// directory of each sandbox with its lock, and files that only root and the launcher's
// user can change. It does not know the content of the files.
package statedir
