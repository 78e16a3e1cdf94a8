package apply

import (
	"errors"
	"maps"
	"path/filepath"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
)

// A commit whose stamps could not be stored leaves its record, until somebody has stored
// them.
func TestStampsAreToldUntilTheyAreStored(t *testing.T) {
	b := newBox(t, "echo old >f; ln f other; mkdir d")
	b.run("echo new >f; echo new >d/new")
	p := b.plan(Options{Source: "box"})
	want, err := p.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Leave(); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the disk is full")
	for _, refusal := range []error{broken, ErrUntold} {
		_, err := Recover(openDir(t, b.tree), false, func(string, map[string]layer.Stamp) error { return refusal })
		if errors.Is(refusal, ErrUntold) != (err == nil) {
			t.Errorf("%v became %v", refusal, err)
		}
		if left, err := filepath.Glob(filepath.Join(b.tree, journalPrefix+"*", doneFile)); err != nil || len(left) != 1 {
			t.Errorf("after %v: %q, %v", refusal, left, err)
		}
	}
	got := map[string]layer.Stamp{}
	_, err = Recover(openDir(t, b.tree), false, func(source string, stamps map[string]layer.Stamp) error {
		if source != "box" {
			t.Errorf("stamps of %q", source)
		}
		maps.Copy(got, stamps)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"f", "d/new"} {
		if got[path].CTime != want.Stamps[path].CTime || got[path].CTime == 0 {
			t.Errorf("%s: told %+v, want %+v", path, got[path], want.Stamps[path])
		}
	}
	b.clean()
}

// An apply that is ended later knows the files that have lost a name.
func TestOtherNamesAreKnownAfterARecovery(t *testing.T) {
	b := newBox(t, "")
	b.run("echo one >f; ln f h")
	stamps := b.apply(Options{Source: "box"}).Stamps
	b.run("rm f; echo two >f")
	p := b.plan(Options{Source: "box", Stamps: stamps})
	if _, err := p.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Leave(); err != nil {
		t.Fatal(err)
	}
	_, err := Recover(openDir(t, b.tree), false, func(_ string, told map[string]layer.Stamp) error {
		maps.Copy(stamps, told)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.run("rm h; echo three >h")
	b.apply(Options{Source: "box", Stamps: stamps})
	b.asMerged()
}
