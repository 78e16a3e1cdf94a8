package sandboxtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A transaction is a copy of the sandbox's files for one command.
type transaction struct {
	dir    string
	before tree
}

// joinedTransaction is a transaction whose files have joined.
type joinedTransaction struct {
	paths         []string
	before, after tree
}

// maxUndo is how many transactions can be undone, as in a sandbox.
const maxUndo = 16

// transaction copies the files for a command.
func (i *instance) transaction() (*transaction, error) {
	root, done, err := i.lockRoot()
	if err != nil {
		return nil, err
	}
	defer done()
	t := &transaction{}
	if t.before, err = readTree(root); err != nil {
		return nil, err
	}
	if t.dir, err = os.MkdirTemp(i.dir, "transaction"); err != nil {
		return nil, err
	}
	copied, err := os.OpenRoot(t.dir)
	if err != nil {
		return nil, err
	}
	defer copied.Close()
	return t, t.before.write(copied, slices.Sorted(maps.Keys(t.before)))
}

// settle joins the files of a transaction with those of the sandbox if the command has succeeded.
// /tmp is not part of the transaction. t is nil for a command without a transaction.
func (i *instance) settle(t *transaction, r *sandbox.Result) error {
	if t == nil {
		return nil
	}
	root, done, err := i.lockRoot()
	if err != nil {
		return err
	}
	defer done()
	defer os.RemoveAll(t.dir)
	after, err := readDir(t.dir)
	if err != nil {
		return err
	}
	now, err := readTree(root)
	if err != nil {
		return err
	}
	var own, tmp []string
	for _, name := range changed(t.before, after) {
		if i.isTemporary(name) {
			tmp = append(tmp, name)
		} else {
			own = append(own, name)
		}
	}
	if err := after.write(root, tmp); err != nil || !r.OK() {
		return err
	}
	if err := conflict(changed(t.before.subset(own), now.subset(own))); err != nil {
		r.Status = sandbox.StatusError
		r.Reason = fmt.Sprintf("the command succeeded, but nothing that it wrote has joined the sandbox's files: %v", err)
		return nil
	}
	i.joined = append(i.joined, joinedTransaction{own, now.subset(own), after.subset(own)})
	i.joined = i.joined[max(0, len(i.joined)-maxUndo):]
	return after.write(root, own)
}

// isTemporary says that a path is in /tmp, and in no overlay.
func (i *instance) isTemporary(name string) bool {
	return strings.HasPrefix(name, "tmp/") && !slices.ContainsFunc(i.layers, func(o *overlay) bool {
		return hostpaths.Within(name, o.rel) || hostpaths.Within(o.rel, name)
	})
}

// conflict is an error if there are paths that others have changed.
func conflict(paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	for n := range paths {
		paths[n] = filepath.Join("/", paths[n])
	}
	return fmt.Errorf("changed meanwhile by others: %s", strings.Join(paths, ", "))
}

// Undo implements [sandbox.Undoer].
func (i *instance) Undo(_ context.Context, n int) error {
	root, done, err := i.lockRoot()
	if err != nil {
		return err
	}
	defer done()
	if n < 1 {
		return &sandbox.ConfigError{Reason: fmt.Sprintf("undo of %d transactions; at least one", n)}
	}
	if n > len(i.joined) {
		return &sandbox.ConfigError{Reason: fmt.Sprintf("undo %d: sandbox %s has %d transactions that can be undone", n, i.info.ID, len(i.joined))}
	}
	for range n {
		last := i.joined[len(i.joined)-1]
		now, err := readTree(root)
		if err != nil {
			return err
		}
		if err := conflict(changed(last.after, now.subset(last.paths))); err != nil {
			return err
		}
		if err := last.before.write(root, last.paths); err != nil {
			return err
		}
		i.joined = i.joined[:len(i.joined)-1]
	}
	return nil
}
