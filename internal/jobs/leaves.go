package jobs

import (
	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// aloneIn says that nothing runs in the sandbox but in one leaf.
func aloneIn(box *record.Sandbox, leaf *cgroups.Leaf) bool {
	names, err := box.Group.Leaves()
	if err != nil {
		return false
	}
	for _, name := range names {
		if name != leaf.Name() && runsIn(box, name) {
			return false
		}
	}
	return true
}

// runsIn is true where that cannot be told.
func runsIn(box *record.Sandbox, name string) bool {
	leaf, err := box.Group.OpenLeaf(name)
	if err != nil {
		return erase.IgnoreMissing(err) != nil
	}
	defer func() { _ = leaf.Close() }() // it only lets go
	alive, err := leaf.Populated()
	return alive || erase.IgnoreMissing(err) != nil
}
