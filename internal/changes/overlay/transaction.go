package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// A Transaction is a command with layers of its own. The command sees the sandbox's files
// below its layers. No other process sees the writes of the command until they join.
//
// Its directory in the store is tx/N, with a directory for the layer of each place, and the
// journal.
type Transaction struct {
	files *Files

	number int
	store  *os.File
	dir    *os.File
	covers covers
	Journal
	// Thread is in the mount namespace with the layers, and keeps that namespace. rootDir is
	// its root.
	Thread  *mountns.Thread
	rootDir *os.File
}

// Begin makes the layers of a transaction and a root with them.
func (v *Files) Begin(ctx context.Context, r record.Record) (_ *Transaction, err error) {
	self, err := v.keeper.self()
	if err != nil {
		return nil, err
	}
	t := &Transaction{files: v, covers: newCovers(r), Journal: Journal{State: txRuns, Owner: self, Since: record.Now()}}
	for _, c := range t.covers {
		t.Places = append(t.Places, c.Place)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("transaction: %w", err), t.Drop())
		}
	}()
	if t.store, err = record.OpenStore(r.Init); err != nil {
		return nil, record.NotFound(v.ID, err)
	}
	if err := relieve(ctx, t.store); err != nil {
		return nil, err
	}
	if err := t.claim(); err != nil {
		return nil, err
	}
	if t.Thread, err = t.covers.enter(r.Init); err != nil {
		return nil, err
	}
	if err := t.Thread.Do(func() error { return t.covers.checkBinds(r) }); err != nil {
		return nil, err
	}
	layer := func(i int, _ *cover) (*os.File, error) { return makeDir(t.dir, strconv.Itoa(i)) }
	if err := v.keeper.stack(r, t.store, t.covers, layer); err != nil {
		return nil, err
	}
	if err := t.Thread.Do(t.enter); err != nil {
		return nil, err
	}
	return t, record.AwaitTick(ctx, t.Since)
}

// enter gives the thread mounts of its own, with the layers in place. The covered mounts
// are read-only there: if this process is killed, the layers vanish from the view a moment
// before the command ends.
func (t *Transaction) enter() (err error) {
	if err := mountns.UnshareMounts(); err != nil {
		return err
	}
	if err := t.covers.freeze(true); err != nil {
		return err
	}
	if err := t.covers.mountAll(); err != nil {
		return err
	}
	t.rootDir, err = mountns.Open("/")
	return err
}

// claim makes the directory, with the journal in it from when it has its number.
func (t *Transaction) claim() error {
	all, err := makeDir(t.store, "tx")
	if err != nil {
		return err
	}
	defer all.Close()
	draft := DraftName(t.Owner)
	if t.dir, err = makeDir(all, draft); err != nil {
		return err
	}
	if err = t.Write(t.dir); err == nil {
		err = t.name(all, draft)
	}
	if err != nil {
		t.dir.Close()
		t.dir = nil
		return errors.Join(err, erase.Entry(context.Background(), all, draft))
	}
	return nil
}

// name gives the directory the next number.
func (t *Transaction) name(all *os.File, draft string) error {
	numbers, err := numbered(all)
	if err != nil {
		return err
	}
	for t.number = slices.Max(append(numbers, 0)) + 1; ; t.number++ {
		err := unix.Renameat2(int(all.Fd()), draft, int(all.Fd()), strconv.Itoa(t.number), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// inTurn does something about a store's transactions while nobody else does.
func inTurn(ctx context.Context, store *os.File, what func() error) error {
	all, err := makeDir(store, "tx")
	if err != nil {
		return err
	}
	defer all.Close()
	if err := descriptor.Lock(ctx, all, descriptor.Exclusive); err != nil {
		return fmt.Errorf("lock the store's transactions: %w", err)
	}
	return what()
}

// StorePath names something in a store.
func StorePath(store *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", store.Fd(), name)
}

// readIn reads a file in a directory of a store.
func readIn(dir *os.File, name string) ([]byte, error) {
	f, err := descriptor.OpenFile(int(dir.Fd()), name, descriptor.Beneath, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// numbered are the entries of a directory that are numbers.
func numbered(dir *os.File) (all []int, err error) {
	if _, err := dir.Seek(0, 0); err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			all = append(all, n)
		}
	}
	return all, err
}

// makeDir opens a directory of the store's that only the host's root may enter, and
// makes it where it is not there.
func makeDir(parent *os.File, name string) (*os.File, error) {
	if err := unix.Mkdirat(int(parent.Fd()), name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("mkdir %s in the store: %w", name, err)
	}
	return descriptor.OpenDir(parent, name)
}

// Root is the root that the command of the transaction has to have.
func (t *Transaction) Root() *os.File { return t.rootDir }

// leave ends the view. Its processes are gone.
func (t *Transaction) leave() {
	if t.Thread != nil {
		t.Thread.Stop()
		t.Thread = nil
	}
	descriptor.Close(t.rootDir)
	for _, c := range t.covers {
		descriptor.Close(c.mount)
	}
}

// Drop has nothing be left of a transaction. Nil is that of a command without a transaction.
func (t *Transaction) Drop() error {
	if t == nil {
		return nil
	}
	t.leave()
	t.covers.close()
	var err error
	if t.dir != nil {
		t.dir.Close()
		err = t.files.keeper.DiscardIn(t.store, "tx/"+strconv.Itoa(t.number))
	}
	descriptor.Close(t.store)
	return err
}
