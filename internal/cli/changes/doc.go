// Package changes has the commands about the files that a sandbox has written: changes, diff, apply, save
// and discard for its overlays, undo for transactions, and snapshot. Package review has the questions and
// the texts.
package changes
