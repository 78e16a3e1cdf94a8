package apply

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// plainOptions apply everything as it is, as transactions do.
func plainOptions() Options {
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

// The layers of an overlay can be on several file systems, with the same inode numbers.
func TestUndoKeepsFilesWithEqualInodeNumbersApart(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	sh(t, dir, "mkdir one two tree upper undo; mknod upper/a c 0 0; mknod upper/a2 c 0 0; mknod upper/b c 0 0; mknod upper/b2 c 0 0")
	mount := func(source, at, kind, data string) {
		t.Helper()
		at = filepath.Join(dir, at)
		if err := unix.Mount(source, at, kind, 0, data); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	mount("tmpfs", "one", "tmpfs", "")
	mount("tmpfs", "two", "tmpfs", "")
	sh(t, dir, "echo a > one/a; ln one/a one/a2; echo b > two/b; ln two/b two/b2")
	mount("overlay", "tree", "overlay", "lowerdir="+filepath.Join(dir, "one")+":"+filepath.Join(dir, "two")+",xino=off")
	tree := openDir(t, filepath.Join(dir, "tree"))
	p, err := New(&layer.Stack{Layers: []layer.Layer{{Dir: openDir(t, filepath.Join(dir, "upper"))}}, Base: tree}, tree, plainOptions())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Save(openDir(t, filepath.Join(dir, "undo"))); err != nil {
		t.Fatal(err)
	}
	sh(t, dir, `cd undo; [ "$(cat a a2 b b2 | tr -d '\n')" = aabb ] && [ a -ef a2 ] && [ b -ef b2 ]`)
}
