package apply

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// pairsTree is the tree at the begin of both sides. All its files are older than the
// sandbox.
const pairsTree = `mkdir -p d/sub/deep other/sub; echo 1 > d/f; echo 2 > d/g; echo 3 > d/sub/h; echo 4 > d/sub/deep/i
echo 5 > other/f; echo 6 > other/sub/h; echo 7 > top; ln -s f d/l; ln d/g d/hard; mkdir -p outside/sub; echo old > outside/f
echo old > outside/sub/h; echo old > outside/x; echo old > lone`

// insidePairs are changes that a sandbox makes.
var insidePairs = []struct{ name, script string }{
	{"modifies a file", "echo inside > d/f"},
	{"appends to a nested file", "echo inside >> d/sub/h"},
	{"creates a file", "echo inside > d/new"},
	{"creates a file in a new directory", "mkdir -p d/fresh/er; echo inside > d/fresh/er/new"},
	{"deletes a file", "rm d/f"},
	{"deletes a directory", "rm -r d"},
	{"deletes a nested directory", "rm -r d/sub"},
	{"makes a directory again", "rm -r d; mkdir d; echo inside > d/again"},
	{"makes a nested directory again", "rm -r d/sub; mkdir d/sub; echo inside > d/sub/again"},
	{"replaces a directory by a file", "rm -r d; echo inside > d"},
	{"replaces a directory by a link", "rm -r d/sub; ln -s other d/sub"},
	{"replaces a file by a directory", "rm d/f; mkdir d/f; echo inside > d/f/x"},
	{"changes a mode", "chmod 700 d d/f"},
	{"renames a directory", "mv d moved"},
	{"links a file", "ln d/f d/linked; echo inside > d/linked"},
}

// outsidePairs are changes of the host meanwhile.
var outsidePairs = []struct{ name, script string }{
	{"modifies a file", "echo outside > d/f"},
	{"appends to a nested file", "echo outside >> d/sub/h"},
	{"writes in place and sets the time back", "cp -p d/f /tmp/outside-$$; echo outside > d/f; touch -r /tmp/outside-$$ d/f; rm /tmp/outside-$$"},
	{"creates a file", "echo outside > d/new"},
	{"creates a file in a nested directory", "echo outside > d/sub/new"},
	{"creates the same directory", "mkdir -p d/fresh/er; echo outside > d/fresh/er/new"},
	{"creates the same directory with an old file", "mv outside d/fresh"},
	{"deletes a file", "rm d/f"},
	{"deletes a directory", "rm -r d"},
	{"replaces a file by an older one", "mv outside/f d/f"},
	{"replaces a nested file by an older one", "mv outside/sub/h d/sub/h"},
	{"swaps the directory for an older one", "mv d gone; mv outside d"},
	{"swaps the nested directory for an older one", "mv d/sub gone; mv outside/sub d/sub"},
	{"exchanges two directories", "mv d x; mv other d; mv x other"},
	{"exchanges nested directories", "mv d/sub x; mv other/sub d/sub; mv x other/sub"},
	{"swaps the directory, then works in it", "mv d gone; mv outside d; echo more > d/more"},
	{"makes the directory again", "rm -r d; mkdir d; echo outside > d/f"},
	{"makes the nested directory again", "rm -r d/sub; mkdir d/sub; echo outside > d/sub/h"},
	{"replaces the directory by a file", "rm -r d; echo outside > d"},
	{"replaces the directory by a link", "rm -r d; ln -s other d"},
	{"replaces the nested directory by a link", "mv d/sub gone; ln -s ../other d/sub"},
	{"replaces a file by a directory", "rm d/f; mkdir d/f; echo outside > d/f/x"},
	{"replaces a file by a link", "rm d/f; ln -s ../top d/f"},
	{"moves an old file in", "mv lone d/lone"},
	{"moves an old file into the nested directory", "mv lone d/sub/lone"},
	{"moves an old directory in", "mv outside d/outside"},
	{"links an old file in", "ln lone d/lone"},
	{"changes modes", "chmod 711 d; chmod 600 d/f"},
	{"changes owners", "chown 7:7 d d/f d/sub"},
	{"sets an attribute", "setfattr -n user.outside -v 1 d d/f || python3 -c 'import os; os.setxattr(\"d\", \"user.outside\", b\"1\"); os.setxattr(\"d/f\", \"user.outside\", b\"1\")'"},
	{"renames the directory", "mv d away"},
	{"works elsewhere", "echo outside > other/f"},
}

// Whatever a sandbox and the host do at the same time, nothing that the host has
// done is lost: an apply conflicts, or both are there afterwards.
func TestPairsOfChangesLoseNothingOfTheHosts(t *testing.T) {
	testhost.Long(t)
	conflicts, applied := 0, 0
	for _, in := range insidePairs {
		for _, out := range outsidePairs {
			t.Run(in.name+", "+out.name, func(t *testing.T) {
				b := newBox(t, pairsTree)
				b.run(in.script)
				b.unmount()
				old := describeTree(t, b.tree)
				b.host(out.script)
				now := describeTree(t, b.tree)
				err := b.applyWhole(Options{})
				var conflict *ConflictError
				switch {
				case errors.As(err, &conflict):
					conflicts++
				case err != nil && strings.Contains(err.Error(), "the tree is changing"):
					conflicts++
				case err != nil:
					t.Error(err)
				default:
					applied++
					keepsAll(t, old, now, describeTree(t, b.tree))
				}
			})
		}
	}
	t.Logf("%d conflicts, %d applied", conflicts, applied)
	if conflicts == 0 || applied == 0 {
		t.Error("it always ended the same way")
	}
}

// keepsAll holds that each entry which the host has changed is in the tree as the
// host has left it.
func keepsAll(t *testing.T, old, now, after []string) {
	t.Helper()
	for _, line := range now {
		if !slices.Contains(old, line) && !slices.Contains(after, line) {
			t.Errorf("lost of the host's: %s", line)
		}
	}
}

// The host deletes or swaps a directory that an apply has made. No later apply removes the
// host's content.
func TestSwappedAfterAnApplyIsAConflict(t *testing.T) {
	for name, script := range map[string]string{
		"swapped":         "mv made gone; mv outside made",
		"swapped, nested": "mv made/in gone; mv outside made/in",
		"made again":      "rm -r made; mkdir -p made/in; echo host > made/in/f; echo host > made/f",
	} {
		for what, again := range map[string]string{
			"modified": "echo two > made/f; echo two > made/in/f",
			"deleted":  "rm -r made",
			"replaced": "rm -r made; mkdir made; echo two > made/f",
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				b := newBox(t, "mkdir outside; echo old > outside/f; touch -d 2001-01-01 outside/f")
				b.run("mkdir -p made/in; echo one > made/f; echo one > made/in/f")
				stamps := b.apply(Options{}).Stamps
				b.run(again)
				b.unmount()
				b.host(script)
				var conflict *ConflictError
				if err := b.refused(Options{Stamps: stamps}); !errors.As(err, &conflict) {
					t.Errorf("no conflict but %v", err)
				}
			})
		}
	}
}

// D1 as it was met: the host's directory is swapped for one in which nothing is
// younger than the sandbox.
func TestADirectoryThatWasSwappedForAnOlderOneIsAConflict(t *testing.T) {
	for inside, at := range map[string]string{
		"echo s > dist/a":                     "dist",
		"rm dist/a":                           "dist",
		"echo s > dist/n":                     "dist",
		"chmod 700 dist":                      "dist",
		"rm -r dist":                          "dist",
		"rm -r dist; mkdir dist":              "dist",
		"rm -r dist; echo > dist":             "dist",
		"echo s > dist/in/b":                  "dist",
		"rm -r dist/in; mkdir dist/in":        "dist",
		"mkdir dist/more; echo > dist/more/x": "dist",
	} {
		t.Run(inside, func(t *testing.T) {
			b := newBox(t, "mkdir -p dist/in new/in; echo 1 > dist/a; echo 2 > new/a; echo 3 > new/b; echo 4 > new/in/b; echo 5 > dist/in/b")
			b.run(inside)
			b.unmount()
			b.host("mv dist ../old; mv new dist")
			b.conflict(at, Options{})
		})
	}
}
