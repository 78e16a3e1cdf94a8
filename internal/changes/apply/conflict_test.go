package apply

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
)

func TestWhatChangedOnTheHostIsAConflict(t *testing.T) {
	tests := map[string]struct{ host, inside, outside, at string }{
		"modified by both":            {"echo a > f", "echo b > f", "echo c > f", "f"},
		"made by both":                {":", "echo b > f", "echo c > f", "f"},
		"deleted, and modified":       {"echo a > f", "rm f", "echo c > f", "f"},
		"its directory a file":        {"mkdir d", "echo b > d/f", "rmdir d; echo > d", "d"},
		"its directory a link":        {"mkdir d e", "echo b > d/f", "rmdir d; ln -s e d", "d"},
		"deleted, and written in":     {"mkdir -p d/e; echo a > d/e/f", "rm -r d", "echo c > d/e/f", "d/e/f"},
		"deleted, and filled":         {"mkdir -p d/e", "rm -r d", "echo c > d/e/g", "d/e/g"},
		"opaque, and written in":      {"mkdir -p d/e; echo a > d/e/f", "rm -r d; mkdir d; echo > d/n", "echo c > d/e/f", "d/e/f"},
		"a file, and filled":          {"mkdir d", "rmdir d; echo > d", "echo c > d/g", "d/g"},
		"attributes of a directory":   {"mkdir -p d/e", "chmod 700 d", "chmod 711 d", "d"},
		"a file in one with new mode": {"mkdir d", "chmod 700 d", "echo c > d/g", "d"},
		"the mode of a file":          {"echo a > f", "echo b > f", "chmod 600 f", "f"},
		"a link elsewhere":            {"ln -s a l", "ln -sf b l", "ln -sfn c l", "l"},
		"deleted, now a directory":    {"echo a > f", "rm f", "rm f; mkdir f", "f"},
		"the same, and an attribute":  {":", "echo b > f; chmod 644 f", "echo b > f; chmod 644 f; " + setAttribute, "f"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, test.host)
			b.run(test.inside)
			b.unmount()
			b.host(test.outside)
			b.conflict(test.at, Options{})
		})
	}
}

const setAttribute = "python3 -c 'import os; os.setxattr(\"f\", \"user.host\", b\"1\")'"

func TestWhatTheHostMayDoMeanwhileIsNoConflict(t *testing.T) {
	tests := map[string]struct{ host, inside, outside string }{
		"the same made":      {":", "echo b > f; chmod 644 f", "echo b > f; chmod 644 f"},
		"the same written":   {"echo a > f", "echo b > f", "echo b > f"},
		"the same attribute": {":", "echo b > f; chmod 644 f; " + setAttribute, "echo b > f; chmod 644 f; " + setAttribute},
		"the same link":      {":", "ln -s x l", "ln -s x l"},
		"the same directory": {":", "mkdir d; echo > d/a", "mkdir d; echo > d/b"},
		"deleted by both":    {"mkdir d; echo > d/f", "rm -r d", "rm -r d"},
		"another file":       {"mkdir d; echo a > d/f", "echo b > d/f", "echo c > d/g"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, test.host)
			b.run(test.inside)
			b.unmount()
			b.host(test.outside)
			b.apply(Options{})
		})
	}
}

func TestOverwriteTakesConflicts(t *testing.T) {
	b := newBox(t, "echo a > f; mkdir d; echo > d/g; mkdir e")
	b.run("echo b > f; rm -r d; chmod 700 e")
	want := describeTree(t, b.merged)
	b.unmount()
	b.host("echo c > f; echo c > d/h; chmod 711 e")
	if p := b.plan(Options{}); len(p.Conflicts()) != 4 {
		t.Errorf("conflicts are %v", p.Conflicts())
	}
	b.apply(Options{Overwrite: true})
	b.wantSame(want, describeTree(t, b.tree))
}

func TestOwnAppliesAreNoConflict(t *testing.T) {
	b := newBox(t, "echo a > f; mkdir d; ln f hard")
	b.run("echo b > f; echo n > d/n; mkdir -p x/y; echo z > x/y/z; ln x/y/z x/link; chmod 700 d; mkdir -m 555 closed")
	stamps := b.apply(Options{}).Stamps
	b.run("echo more >> f; echo more >> d/n; echo more >> x/y/z; chmod 711 d; rm -r closed")
	want := describeTree(t, b.merged)
	b.apply(Options{Stamps: stamps})
	b.wantSame(want, describeTree(t, b.tree))
	stamps["f"] = layer.Stamp{CTime: stamps["f"].CTime - 1}
	b.run("echo still more >> f")
	b.conflict("f", Options{Stamps: stamps})
}

func TestWhatTheHostHasDeletedOfAnApplyIsAConflict(t *testing.T) {
	b := newBox(t, "echo a > f; mkdir host")
	b.run("echo b > f; mkdir -p d/e; echo n > d/e/n; echo m > host/m")
	stamps := b.apply(Options{}).Stamps
	b.run("chmod 640 f")
	b.unmount()
	b.host("rm f")
	b.conflict("f", Options{Stamps: stamps})
	b.host("echo b > f; chmod 640 f; touch -r ../upper/f f; rm -r d/e")
	b.conflict("d/e", Options{Stamps: stamps, Paths: []string{"d"}})
	b.host("rm -r host")
	b.conflict("host", Options{Stamps: stamps, Paths: []string{"host"}})
	b.apply(Options{Stamps: stamps, Overwrite: true})
}

// What an apply has deleted is nothing that the host could have deleted since.
func TestWhatAnApplyHasDeletedCanComeAgain(t *testing.T) {
	b := newBox(t, "echo a > f; mkdir d; echo > d/was")
	b.run("echo b > f; echo n > d/n; mkdir -p x/y")
	first := b.apply(Options{}).Stamps
	b.run("rm -r f d x; mkdir d; echo > x")
	second := b.apply(Options{Stamps: first}).Stamps
	for path, there := range map[string]bool{"f": false, "d": true, "d/n": false, "x": true, "x/y": false} {
		if stamp, known := second[path]; !known || (stamp != layer.Stamp{}) != there {
			t.Errorf("%s: stamp %v, %t", path, stamp, known)
		}
	}
	maps.Copy(first, second)
	maps.DeleteFunc(first, func(_ string, stamp layer.Stamp) bool { return stamp == layer.Stamp{} })
	b.run("echo c > f; echo o > d/n; rm x; mkdir -p x/y")
	want := describeTree(t, b.merged)
	b.apply(Options{Stamps: first})
	b.wantSame(want, describeTree(t, b.tree))
}

// One that was killed has told nobody what it has applied.
func TestWhatIsThereAnywayIsNoConflict(t *testing.T) {
	b := newBox(t, host)
	b.work()
	b.run("echo x > suid; chmod 4755 suid")
	b.apply(Options{})
	want := describeTree(t, b.tree)
	b.apply(Options{})
	b.wantSame(want, describeTree(t, b.tree))
	b.host("echo of the host > opaque/new")
	b.conflict("opaque/new", Options{})
}

func TestADryRunWritesNothing(t *testing.T) {
	b := newBox(t, host)
	b.work()
	before := describeTree(t, b.tree)
	p := b.plan(Options{})
	if len(p.Changes()) < 30 || len(p.Conflicts()) > 0 {
		t.Errorf("%d changes, conflicts %v", len(p.Changes()), p.Conflicts())
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	b.wantSame(before, describeTree(t, b.tree))
}

func TestOnlyChosenPathsAreApplied(t *testing.T) {
	const lower = "mkdir -p old/sub opaque gone; echo 1 > old/a; echo 2 > old/sub/b; echo 3 > opaque/c; echo 4 > opaque/d; echo 5 > gone/e; echo 6 > gone/f; echo > turns; echo > other"
	const work = `echo x > old/a; echo x > old/sub/b; rm -r opaque; mkdir opaque; echo x > opaque/c; echo x > opaque/n
		rm -r gone; mkdir -p -m 711 new/deep/er; echo x > new/deep/er/n; echo x > new/deep/m; rm turns; mkdir turns; echo > turns/t; echo x > other
		ln new/deep/m new/deep/hard; ln new/deep/m new/deep/harder`
	tests := map[string]struct {
		paths []string
		want  string // a script that does to the lower tree what is to be done
	}{
		"a file":              {[]string{"old/a"}, "echo x > old/a"},
		"a directory":         {[]string{"old/"}, "echo x > old/a; echo x > old/sub/b"},
		"missing parents":     {[]string{"./new/deep/er/n"}, "mkdir -p -m 711 new/deep/er; echo x > new/deep/er/n"},
		"in an opaque one":    {[]string{"opaque/c"}, "echo x > opaque/c"},
		"hidden":              {[]string{"opaque/d", "gone/f"}, "rm opaque/d gone/f"},
		"a replaced parent":   {[]string{"turns/t"}, "rm turns; mkdir turns; echo > turns/t"},
		"several":             {[]string{"new/deep/m", "other", "new/deep/m"}, "mkdir -p new/deep; echo x > new/deep/m; echo x > other"},
		"later names of one":  {[]string{"new/deep/hard", "new/deep/harder"}, "mkdir -p new/deep; echo x > new/deep/hard; ln new/deep/hard new/deep/harder"},
		"all of a deleted":    {[]string{"gone"}, "rm -r gone"},
		"everything, by name": {[]string{"."}, work},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, lower)
			b.run(work)
			wanted := filepath.Join(filepath.Dir(b.tree), "wanted")
			sh(t, b.tree, "cp -a . ../wanted; touch -d 2001-01-01 ../wanted")
			sh(t, wanted, test.want)
			b.apply(Options{Paths: test.paths})
			b.wantSame(timeless(describeTree(t, wanted)), timeless(describeTree(t, b.tree)))
		})
	}
	for _, path := range []string{"nothing", "../tree", "/old", "old//a", "old/a/../a", "opaque/nothing/at/all/x"} {
		b := newBox(t, lower)
		b.run(work)
		if err := b.refused(Options{Paths: []string{path}}); !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", path, err)
		}
	}
	b := newBox(t, lower)
	b.run(work)
	// With several overlays the caller has named a whole path.
	if err := b.refused(Options{Paths: []string{"nothing"}}); !strings.Contains(err.Error(), filepath.Join(b.tree, "nothing")) {
		t.Error(err)
	}
}

// timeless leaves out when files were changed.
func timeless(lines []string) []string {
	for i, line := range lines {
		f := strings.Fields(line)
		for j, word := range f {
			if len(word) >= 20 && strings.Contains(word, ".") {
				f[j] = "-"
			}
		}
		lines[i] = strings.Join(f, " ")
	}
	return lines
}

func TestChangesWhileItIsAppliedAreConflicts(t *testing.T) {
	for name, script := range map[string]string{
		"written":        "echo c > f",
		"replaced":       "rm f; echo a > f",
		"filled":         "echo c > d/e/new",
		"made":           "echo c > n",
		"parent swapped": "mv p q; ln -s q p",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, "echo a > f; mkdir -p d/e p; echo > p/x")
			b.run("echo b > f; rm -r d; echo b > n; echo b > p/x; echo > zz")
			b.unmount()
			p := b.plan(Options{})
			b.host(script)
			before := describeTree(t, b.tree)
			_, err := p.Commit(t.Context())
			var conflict *ConflictError
			if !errors.As(err, &conflict) {
				t.Errorf("no conflict but %v", err)
			}
			b.wantSame(before, describeTree(t, b.tree))
			b.clean()
		})
	}
}

func (b *box) unmount() {
	b.t.Helper()
	sh(b.t, "/", "umount "+b.merged)
	if err := os.Remove(b.merged); err != nil {
		b.t.Fatal(err)
	}
	*b.gone = true
}
