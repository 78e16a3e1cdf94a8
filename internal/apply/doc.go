// Package apply puts what a sandbox has written onto the directory tree that it
// saw, with the rights of whoever calls.
//
// For most uses: [New] with the stack of layers and the tree, a look at
// [Plan.Conflicts] and [Plan.Refused], then [Plan.Commit] and [Plan.Close].
// Without Commit nothing is written: that is a dry run.
//
// All that is new is first made in a directory of its own in the tree's root,
// `.sandbox-runtime-apply-ID`, and synced. Then a record of what is to be done
// is made durable there, and only then do renames change the tree, one for each
// new, replaced or removed entry; what was replaced is kept in the directory
// until all is done. Killed before the record is there, an apply has not
// happened; killed later, it is finished, or rolled back if the tree has changed
// meanwhile, by whoever applies next to this tree or calls [Recover].
//
// The tree may be changed by others at any time, also by those who wish harm.
// Every step goes from a held descriptor of the tree's root, one name at a time,
// through no link and onto no other mount, and what a rename replaced is
// compared with what was to be replaced. What is not as it was is a conflict:
// everything is put back.
//
// The package knows layers and trees, not sandboxes: whose the new files are and
// what counts as changed is in [Options].
package apply
