package apply

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
)

// manyScript makes files for several batches, links between directories among them.
const manyScript = `
	for d in a b c/d; do mkdir -p $d; for f in $(seq 150); do echo $d $f >$d/$f; done; done
	ln a/1 c/d/link; ln c/d/2 a/link; ln -s a/1 symlink; mkfifo b/fifo`

func TestManyFilesAreStaged(t *testing.T) {
	b := newBox(t, "")
	b.run(manyScript)
	r := b.apply(Options{})
	b.asMerged()
	if got := b.changed(r.Stamps); len(got) > 0 {
		t.Errorf("changed after the apply: %q", got)
	}
}

func TestOneFileOfManyCannotBeStaged(t *testing.T) {
	b := newBox(t, "")
	b.run(manyScript)
	p := b.plan(Options{})
	sh(t, b.upper, "rm b/77")
	before := describeTree(t, b.tree)
	_, err := p.Commit(t.Context())
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "b/77") {
		t.Errorf("the error is %v", err)
	}
	b.clean()
	b.wantSame(before, describeTree(t, b.tree))
}

func TestCancelledApplyLeavesNothing(t *testing.T) {
	b := newBox(t, "")
	b.run(manyScript)
	p := b.plan(Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	before := describeTree(t, b.tree)
	if _, err := p.Commit(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	b.clean()
	b.wantSame(before, describeTree(t, b.tree))
}
