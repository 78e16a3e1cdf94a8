package apply

import (
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// asIs applies everything as it is, as transactions do.
func asIs() Options {
	return Options{
		Owners: func(c spec.Change) Owner { return Owner{UID: c.UID, GID: c.GID} },
		Setuid: true, Devices: true,
		Since: time.Now().Add(time.Hour), // all there is counts as seen
	}
}

func TestAnAppliedUndoLayerUndoes(t *testing.T) {
	b := newBox(t, host+"rm two; chown 1234:5678 deleted; chmod 4755 opaque/z; ln opaque/z opaque/again; mknod dev b 7 99; mkfifo gonedir/fifo")
	b.work()
	b.run("rm dev; chown -R 4321 made")
	b.thereAndBack()
}

// A transaction's target is the live overlay of a sandbox, which does not move
// directories of the tree below it.
func TestATransactionJoinsALiveOverlayAndIsUndone(t *testing.T) {
	b := newBox(t, host+"rm two")
	b.run("echo written > dir/live; mkdir livedir; echo l > livedir/l")
	tx := b.transaction()
	tx.work()
	tx.run("rm -r livedir")
	tx.thereAndBack()
}
