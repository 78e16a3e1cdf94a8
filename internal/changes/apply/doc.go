// Package apply puts the changes of a sandbox onto the host's directory tree, with the
// rights of the caller.
//
// For most uses: [New] with the stack of layers and the tree, a look at [Plan.Conflicts],
// [Plan.Held] and [Plan.Refused], then [Plan.Commit] and [Plan.Close]. Without Commit
// nothing is written: that is a dry run.
//
// A conflict is an entry of the tree that others have changed, and that the plan would
// replace, remove or give other attributes. Three facts tell: the ctime of the entry, the
// origin of a directory (package layer), and the [layer.Stamp] of each path that an
// earlier apply has written. [Plan.Commit] returns the stamps for the next plan.
//
// Commit first makes all new entries in a directory of its own in the tree's root,
// `.sandbox-runtime-apply-ID`, and syncs them. Then it writes a durable record of the
// steps there. Only then do renames change the tree, one for each new, replaced or removed
// entry. Replaced entries stay in the directory until all steps are done. An apply that is
// killed before the record exists has changed nothing. An apply that is killed later is
// ended by [Recover] or the next Commit: all steps are done, or they are undone if the
// tree has changed meanwhile. An undo leaves entries that others have changed since the
// apply, and names them. With [Options.View] nothing is synced: a kill does no harm, but a
// crash of the host can.
//
// Others, also attackers, may change the tree at any time. Every step goes from a held
// descriptor of the tree's root, one name at a time, through no link and onto no other
// mount. After a rename the step compares the replaced entry with the planned one. A
// difference is a conflict: everything is put back.
//
// The package knows layers and trees, not sandboxes: [Options] give the owner of new files
// and the changes to leave out.
package apply
