// Package sandboxes has the commands that make sandboxes, run commands in them, show them and remove
// them: do, up, exec, attach, logs, cp, inspect, stats, network and down. The commands about the changes
// in overlays are in package changes.
package sandboxes
