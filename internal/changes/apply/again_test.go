package apply

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/layertest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// changed lists the differences of the overlay from the tree.
func (b *box) changed(stamps map[string]layer.Stamp) []string {
	b.t.Helper()
	s := b.stack()
	s.Stamps = stamps
	var all []string
	for c, err := range s.Changes(layer.Options{}) {
		if err != nil {
			b.t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s %s", c.Kind, c.Path))
	}
	return all
}

// applyAgain applies with the stamps of all applies before, and adds its own.
func (b *box) applyAgain(stamps map[string]layer.Stamp) {
	b.t.Helper()
	s := b.stack()
	s.Stamps = stamps
	o := plainOptions()
	o.Since, o.Stamps = b.since, stamps
	p, err := New(s, openDir(b.t, b.tree), o)
	if err != nil {
		b.t.Fatal(err)
	}
	maps.Copy(stamps, b.commit(p).Stamps)
	maps.DeleteFunc(stamps, func(_ string, s layer.Stamp) bool { return s == layer.Stamp{} })
}

func TestNothingIsChangedAfterAWholeApply(t *testing.T) {
	b := newBox(t, host)
	b.work()
	stamps := map[string]layer.Stamp{}
	b.applyAgain(stamps)
	if left := b.changed(stamps); len(left) > 0 {
		t.Errorf("still changed: %q", left)
	}
	// What is done after that is all that is listed.
	for _, step := range []struct {
		script string
		want   []string
	}{
		{"echo x > made/n", []string{"modified hard", "modified made/a/hard", "modified made/n"}},
		{"ln hard harder", []string{"modified hard", "created harder", "modified made/a/hard", "modified made/n"}},
		{"rm made/a/b/c; echo > opaque/again", []string{"deleted made/a/b/c", "created opaque/again"}},
		{"rm -r opaque; mkdir opaque; echo > opaque/third", []string{"deleted opaque/again", "deleted opaque/new", "created opaque/third"}},
		{"rm -r made", []string{"modified hard", "modified harder", "deleted made"}},
		{"mkdir made; echo > made/anew", []string{"created made", "created made/anew"}},
	} {
		b.run(step.script)
		if got := b.changed(stamps); !slices.Equal(got, step.want) {
			t.Errorf("after %q: %q, want %q", step.script, got, step.want)
		}
		b.applyAgain(stamps)
		if left := b.changed(stamps); len(left) > 0 {
			t.Errorf("after %q was applied: %q", step.script, left)
		}
		b.asMerged()
	}
}

// A directory that was applied is made again with the directory above it, which the host
// had before.
func TestAppliedDirectoryComesAgainWithTheOneAboveIt(t *testing.T) {
	b := newBox(t, "mkdir d; echo a > d/f")
	b.run("mkdir -p d/new/in; echo b > d/new/f")
	stamps := map[string]layer.Stamp{}
	b.applyAgain(stamps)
	b.run("cp -a d/new ../kept; rm -r d; mkdir d; mv ../kept d/new")
	if got, want := b.changed(stamps), []string{"modified d", "modified d/new", "modified d/new/f", "modified d/new/in"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	b.applyAgain(stamps)
	b.asMerged()
	if left := b.changed(stamps); len(left) > 0 {
		t.Errorf("still changed: %q", left)
	}
}

// An applied directory is the host's as well: the host's files in the directory are not
// deleted, and are no conflict.
func TestWhatTheHostPutsIntoAppliedDirectoriesStays(t *testing.T) {
	b := newBox(t, "mkdir -p d/old")
	b.run("mkdir -p new/in; echo a > new/f; rm -r d; mkdir d; echo b > d/g")
	stamps := map[string]layer.Stamp{}
	b.applyAgain(stamps)
	b.host("echo host > new/host; echo host > d/host; mkdir new/in/host")
	if left := b.changed(stamps); len(left) > 0 {
		t.Errorf("still changed: %q", left)
	}
	b.run("echo more > new/f; echo more > d/g; echo > new/in/x")
	b.applyAgain(stamps)
	sh(t, b.tree, "[ $(cat new/host) = host ]; [ $(cat d/host) = host ]; [ -d new/in/host ]; [ $(cat new/f) = more ]; [ $(cat d/g) = more ]")
}

// Applies of random changes, one after the other, leave nothing and find no
// conflict with each other.
func TestRandomAppliesFollowEachOther(t *testing.T) {
	for n := range 8 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			r := layertest.NewRandom(t, rand.Uint64())
			r.Odd = true
			b := newBox(t, "")
			b.unmount()
			r.Grow(t, b.tree, 60)
			sh(t, b.tree, "mkdir ../merged")
			b.mount()
			stamps := map[string]layer.Stamp{}
			for range 4 {
				r.Edit(t, b.merged, 30)
				b.applyAgain(stamps)
				b.wantSame(unlinked(describeTree(t, b.merged)), unlinked(describeTree(t, b.tree)))
				if len(b.changed(stamps)) > 0 { // a name of a file that another one was moved to
					b.applyAgain(stamps)
				}
				if left := b.changed(stamps); len(left) > 0 {
					t.Fatalf("still changed: %q", left)
				}
			}
		})
	}
}

// The host goes on with a file that was applied, and the sandbox with others: the host's
// file is newer than the sandbox's.
func TestAppliedFilesThatTheHostHasChangedAreTheHosts(t *testing.T) {
	for name, host := range map[string]string{
		"edited": "echo host > f", "replaced": "echo host > n; mv n f", "deleted": "rm f", "chmod": "chmod 600 f",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, "mkdir d; echo a > f")
			b.run("echo b > f; echo b > d/g")
			awaitTick(t.Context()) // else another write could have the same time
			stamps := map[string]layer.Stamp{}
			b.applyAgain(stamps)
			b.host(host)
			b.run("echo c > d/g")
			before := describedPath(describeTree(t, b.tree), "f")
			o := plainOptions()
			o.Since, o.Stamps = b.since, stamps
			p := b.plan(o)
			if got := p.Refused(); len(got) != 1 || got[0] != (spec.Unapplied{Path: "f", Reason: HostsOwn}) {
				t.Errorf("left out: %+v", got)
			}
			maps.Copy(stamps, b.commit(p).Stamps)
			sh(t, b.tree, "[ $(cat d/g) = c ]")
			if after := describedPath(describeTree(t, b.tree), "f"); after != before {
				t.Errorf("f was %s and is %s", before, after)
			}
			b.run("echo d >> f") // the sandbox goes on with it, too
			b.conflict("f", o)
		})
	}
}

// describedPath is the line of describeTree about a path.
func describedPath(seen []string, path string) string {
	for _, line := range seen {
		if strings.HasPrefix(line, fmt.Sprintf("%q ", path)) {
			return line
		}
	}
	return ""
}

// A file of a directory that took the place of another one is no file that was applied.
func TestAFileOfAMovedDirectoryIsTheSandboxs(t *testing.T) {
	b := newBox(t, "true")
	b.run("mkdir current next; echo a > current/f; echo b > next/f; touch -d @1 current/f next/f")
	awaitTick(t.Context())
	stamps := map[string]layer.Stamp{}
	b.applyAgain(stamps)
	b.host("echo host > current/f")
	b.run("mv current old; mv next current")
	o := plainOptions()
	o.Since, o.Stamps = b.since, stamps
	p := b.plan(o)
	if got := p.Refused(); len(got) != 0 {
		t.Errorf("left out: %+v", got)
	}
	if len(p.Conflicts()) == 0 {
		t.Error("no conflict about the host's file")
	}
}
