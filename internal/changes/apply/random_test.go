package apply

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/layertest"
)

// Whatever is done in an overlay, applying it makes the tree what the overlay
// shows, and undoing that what it was; and so if the tree is a live overlay, too.
func TestWhateverIsDoneIsAppliedAndUndone(t *testing.T) {
	for n := range 16 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			r := layertest.NewRandom(t, rand.Uint64())
			r.Odd = true
			b := newBox(t, "")
			b.unmount()
			r.Grow(t, b.tree, 60)
			if err := os.Mkdir(b.merged, 0o755); err != nil {
				t.Fatal(err)
			}
			b.mount()
			r.Edit(t, b.merged, 40)
			if n%2 == 1 {
				b = b.transaction()
				r.Edit(t, b.merged, 40)
			}
			b.thereAndBack()
		})
	}
}

// transaction is a box on top of the box.
func (b *box) transaction() *box {
	b.t.Helper()
	dir := filepath.Dir(b.tree)
	tx := &box{t: b.t, tree: b.merged, upper: filepath.Join(dir, "tx/upper"), merged: filepath.Join(dir, "tx/merged")}
	sh(b.t, dir, "mkdir tx tx/upper tx/work tx/merged")
	tx.mountOver(b.upper + ":" + b.tree)
	return tx
}

var linked = regexp.MustCompile(` is ".*?[^\\]"`)

// unlinked leaves out which files have several names: whoever writes to one of
// them through an overlay parts it from the others.
func unlinked(lines []string) []string {
	for i, line := range lines {
		lines[i] = linked.ReplaceAllString(line, "")
	}
	return lines
}

func (b *box) thereAndBack() {
	b.t.Helper()
	undo := filepath.Join(filepath.Dir(b.upper), "undo")
	if err := os.Mkdir(undo, 0o700); err != nil {
		b.t.Fatal(err)
	}
	before, want := describeTree(b.t, b.tree), describeTree(b.t, b.merged)
	p := b.plan(plainOptions())
	if _, err := p.Save(openDir(b.t, undo)); err != nil {
		b.t.Fatal(err)
	}
	b.commit(p)
	b.wantSame(unlinked(want), unlinked(describeTree(b.t, b.tree)))

	tree := openDir(b.t, b.tree)
	p, err := New(&layer.Stack{Layers: []layer.Layer{{Dir: openDir(b.t, undo)}}, Base: tree}, tree, plainOptions())
	if err != nil {
		b.t.Fatal(err)
	}
	b.commit(p)
	b.wantSame(unlinked(before), unlinked(describeTree(b.t, b.tree)))
}
