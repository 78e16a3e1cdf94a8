package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// bound is a directory of the host with a file.
func bound(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bound")
	testhost.WriteFile(t, filepath.Join(dir, "given"), "bound\n")
	return dir
}

func isConfigError(err error) bool {
	_, ok := errors.AsType[*fault.ConfigError](err)
	return ok
}

// All places join, or none.
func TestATransactionJoinsAtEachPlace(t *testing.T) {
	dir := bound(t)
	b := newTestBox(t, spec.Config{Binds: []spec.Bind{{Source: dir, Target: "/bound", Writable: true}}})
	const shown = "cd /; find /workspace /home/sandbox /bound -printf '%p %y %m %l\n' -type f -exec cat {} + | LC_ALL=C sort"
	const change = "for d in /workspace /home/sandbox /bound; do cd $d; echo new > new; mkdir -p sub/dir; ln -s new link; done; cd /bound; rm given; rm -r /workspace/d; "
	b.sh(t, "mkdir d; echo x > d/x; echo old > w")
	before := b.sh(t, shown)
	tx, err := b.Begin(t.Context(), b.Current())
	if err != nil {
		t.Fatal(err)
	}
	inside, err := run(tx.Thread, change+shown)
	if err != nil {
		t.Fatal(err, inside)
	}
	if now := b.sh(t, shown); now != before {
		t.Errorf("before the join there is\n%s\nwhere there was\n%s", now, before)
	}
	if err := tx.Drop(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(StorePath(b.store, "tx")); err != nil || len(left) > 0 {
		t.Errorf("a dropped transaction has left %v, %v", left, err)
	}
	if err := b.transact(t, change); err != nil {
		t.Fatal(err)
	}
	if now := b.sh(t, shown); now != inside {
		t.Errorf("after the join there is\n%s\nand in the transaction there was\n%s", now, inside)
	}
	if _, err := os.Lstat(filepath.Join(dir, "given")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("on the host the removed file is there: %v", err)
	}
	if err := b.Undo(t.Context(), 2); !isConfigError(err) {
		t.Errorf("undo of more than there are: %v", err)
	}
	if err := b.Undo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if now := b.sh(t, shown); now != before {
		t.Errorf("undo has left\n%s\nwhere there was\n%s", now, before)
	}
}

// Another command changes a file that a transaction changes.
func TestATransactionThatConflictsJoinsNowhere(t *testing.T) {
	b := newTestBox(t, spec.Config{})
	b.sh(t, "echo old > f")
	err := b.transact(t, "echo changed > f; echo new > /home/sandbox/new; nsenter -t "+fmt.Sprint(b.Init().Pid)+" -m sh -c 'echo other > /workspace/f'")
	if err == nil || !strings.Contains(err.Error(), "changed meanwhile by others: /workspace/f") || strings.Contains(err.Error(), "/home") {
		t.Errorf("got %v", err)
	}
	if got := b.sh(t, "cat f; ls /home/sandbox"); got != "other\n" {
		t.Errorf("there is %q", got)
	}
	if err := b.Undo(t.Context(), 1); !isConfigError(err) {
		t.Errorf("undo of a transaction that did not join: %v", err)
	}
}

// A launcher that is killed leaves a transaction in one of its states. The next launcher finishes the transaction, or takes it back.
func TestTheNextLauncherEndsATransaction(t *testing.T) {
	for name, c := range map[string]struct {
		state txState
		owner func(self process.ID) process.ID
		want  string // the content of the file, and the number of transactions
	}{
		"runs":                     {txRuns, func(id process.ID) process.ID { id.Start += 2; return id }, "old 0"},
		"runs, and its owner does": {txRuns, func(id process.ID) process.ID { return id }, "old 1"},
		"joins":                    {TxJoins, func(id process.ID) process.ID { id.Start += 2; return id }, "new 1"},
	} {
		b := newTestBox(t, spec.Config{})
		b.sh(t, "echo old > f")
		tx, err := b.Begin(t.Context(), b.Current())
		if err != nil {
			t.Fatal(err)
		}
		if out, err := run(tx.Thread, "echo new > f"); err != nil {
			t.Fatal(err, out)
		}
		tx.leave()
		tx.State, tx.Owner = c.state, c.owner(tx.Owner)
		if err := tx.Write(tx.dir); err != nil {
			t.Fatal(err)
		}
		if half, err := PartialIn(b.store); err != nil || (len(half) > 0) != (c.state == TxJoins) {
			t.Errorf("%s: half done are %q, %v", name, half, err)
		}
		if err := b.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		left, err := os.ReadDir(StorePath(b.store, "tx"))
		if got := fmt.Sprintf("%s %d", strings.TrimSpace(b.sh(t, "cat f")), len(left)); got != c.want || err != nil {
			t.Errorf("%s: %q, want %q, %v", name, got, c.want, err)
		}
		if c.state == TxJoins {
			half, err := PartialIn(b.store)
			joined, listed := joinedIn(b.store)
			if err := errors.Join(err, listed); err != nil || len(half) > 0 || len(joined) != 1 {
				t.Errorf("%s: half done are %q, and joined %v, %v", name, half, joined, err)
			}
		}
		tx.dir.Close()
		tx.dir = nil
		if err := tx.Drop(); err != nil {
			t.Error(err)
		}
	}
}

// The layers that undo transactions take room in the store.
func TestTransactionsThatCanBeUndoneHaveABound(t *testing.T) {
	b := newTestBox(t, spec.Config{})
	for i := range maxUndo + 2 {
		if err := b.transact(t, fmt.Sprintf("echo %d > f", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Undo(t.Context(), maxUndo+1); !isConfigError(err) {
		t.Errorf("undo of too many: %v", err)
	}
	if err := b.Undo(t.Context(), maxUndo); err != nil {
		t.Fatal(err)
	}
	if got := b.sh(t, "cat f"); got != "1\n" {
		t.Errorf("there is %q", got)
	}
}

// The kernel gives new files the time of its last tick, in which a join may have ended.
func TestUndoSeesWhatIsWrittenAtOnce(t *testing.T) {
	dir := bound(t)
	b := newTestBox(t, spec.Config{Binds: []spec.Bind{{Source: dir, Target: "/bound", Writable: true}}})
	for i := range 5 {
		file := filepath.Join(dir, fmt.Sprint(i))
		if err := b.transact(t, "echo joined > /bound/"+filepath.Base(file)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(file), os.WriteFile(file, []byte("other"), 0o644)); err != nil {
			t.Fatal(err)
		}
		if err := b.Undo(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "/bound/") {
			t.Errorf("undo of a file that others have written since: %v", err)
		}
	}
}

// A directory of the host is at two places, and undo goes back through both.
func TestUndoAtTwoPlacesOfADirectory(t *testing.T) {
	dir := bound(t)
	b := newTestBox(t, spec.Config{Binds: []spec.Bind{{Source: dir, Target: "/a", Writable: true}, {Source: dir, Target: "/b", Writable: true}}})
	b.sh(t, "echo old > /a/f")
	for _, place := range []string{"/a", "/b", "/a"} {
		if err := b.transact(t, "echo "+place+" > "+place+"/f"); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"/b\n", "/a\n", "old\n"} {
		if err := b.Undo(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if got := b.sh(t, "cat /a/f"); got != want {
			t.Errorf("there is %q, want %q", got, want)
		}
	}
}

// Others change a file between two transactions. To undo both does not drop that change.
func TestUndoKeepsWhatIsWrittenBetweenTransactions(t *testing.T) {
	for name, c := range map[string]struct {
		lines    []string // the transactions; a line with a + is of another command
		undone   int
		conflict string
		want     string
	}{
		"the same file":     {[]string{"echo 1 > f", "+echo other > f", "echo 2 > f"}, 1, "/f", "other old old"},
		"a removed file":    {[]string{"rm f", "+echo other > f", "echo 2 > f"}, 1, "/f", "other old old"},
		"a new directory":   {[]string{"mkdir n", "+echo other > n/f", "echo 2 > n/f; cp n/f f"}, 1, "/n", "old old old"},
		"a removed one":     {[]string{"echo 1 > d/x", "+echo other > d/x", "rm -r d"}, 1, "/d/x", "old old other"},
		"nobody":            {[]string{"echo 1 > f; echo 1 > d/x", "echo 2 > g", "rm -r d; echo 3 > f", "mkdir d; echo 4 > d/x"}, 4, "", "old old old"},
		"before the oldest": {[]string{"+echo other > f", "echo 1 > f", "echo 2 > f; rm g"}, 2, "", "other old old"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestBox(t, spec.Config{})
			b.sh(t, "echo old > f; echo old > g; mkdir d; echo old > d/x")
			n := 0
			for _, line := range c.lines {
				if other, ok := strings.CutPrefix(line, "+"); ok {
					b.sh(t, other)
					continue
				}
				n++
				if err := b.transact(t, line); err != nil {
					t.Fatal(err)
				}
			}
			err := b.Undo(t.Context(), n)
			if (err == nil) != (c.conflict == "") || err != nil && !strings.Contains(err.Error(), "/workspace"+c.conflict) {
				t.Errorf("undo: %v", err)
			}
			if left := n - c.undone; left > 0 && !isConfigError(b.Undo(t.Context(), left+1)) {
				t.Errorf("there are more than %d transactions", left)
			}
			if got := b.sh(t, "echo $(cat f g d/x)"); got != c.want+"\n" {
				t.Errorf("there is %q, want %q", got, c.want)
			}
		})
	}
}

// Undo goes on where an earlier version has joined a transaction: that version noted no stamps.
func TestUndoOfATransactionWithoutStamps(t *testing.T) {
	b := newTestBox(t, spec.Config{})
	b.sh(t, "echo old > f")
	for _, line := range []string{"echo 1 > f", "echo 2 > f"} {
		if err := b.transact(t, line); err != nil {
			t.Fatal(err)
		}
	}
	lists, err := filepath.Glob(StorePath(b.store, "tx/*/stamps"))
	if err != nil || len(lists) != 2 {
		t.Fatal(lists, err)
	}
	for _, list := range lists {
		if err := os.Remove(list); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Undo(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if got := b.sh(t, "cat f"); got != "old\n" {
		t.Errorf("there is %q", got)
	}
}

// A bound directory has another path on the host by now. A transaction cannot keep writes to it apart, and refuses.
func TestATransactionNeedsTheDirectoriesOfItsBinds(t *testing.T) {
	for name, next := range map[string]func(dir string) error{
		"nothing": func(string) error { return nil },
		"a file":  func(dir string) error { return os.WriteFile(dir, nil, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := bound(t)
			b := newTestBox(t, spec.Config{Binds: []spec.Bind{{Source: dir, Target: "/bound", Writable: true}}})
			if err := errors.Join(os.Rename(dir, dir+"-moved"), next(dir)); err != nil {
				t.Fatal(err)
			}
			if err := b.transact(t, "echo bypass > /bound/f"); !isConfigError(err) || !strings.Contains(err.Error(), "/bound") {
				t.Errorf("transaction: %v", err)
			}
			if _, err := os.Lstat(dir + "-moved/f"); err == nil {
				t.Error("a refused transaction has written")
			}
		})
	}
}

// A span without paths has all paths, and a directory that the runtime has changed is no conflict at its times alone.
func TestSpansOfAJournal(t *testing.T) {
	from := time.Unix(100, 0)
	all, some := span{From: from, To: from.Add(time.Second)}, span{From: from, To: from.Add(time.Second), Paths: []string{"/a"}}
	for path, want := range map[string][2]bool{"/a": {true, true}, "/b": {true, false}} {
		if all.contains(path, from) != want[0] || some.contains(path, from) != want[1] {
			t.Errorf("%s at the beginning: %t, %t", path, all.contains(path, from), some.contains(path, from))
		}
	}
	for at, want := range map[time.Duration]bool{-1: false, 0: true, time.Second: true, time.Second + 1: false} {
		if got := all.contains("/a", from.Add(at)); got != want {
			t.Errorf("after %v: %t", at, got)
		}
	}
}
