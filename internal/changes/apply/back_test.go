package apply

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
)

// The apply has moved files of the host, and is taken back. Others have taken the places of these files meanwhile. The
// files can have changes that the sandbox never saw, so they stay in the tree.
func TestFilesOfTheHostThatCannotGoBackAreKept(t *testing.T) {
	for what, c := range map[string]struct {
		sandbox, host string
		kept          []string // contents
		stays         map[string]string
	}{
		"a removed directory": {"rm -r gone", "mkdir gone; echo theirs > gone/new", []string{"in a directory\n"}, map[string]string{"gone/new": "theirs\n"}},
		"a removed file":      {"rm file", "echo theirs > file", []string{"a file\n"}, map[string]string{"file": "theirs\n"}},
		"a replaced directory": {
			"rm -r gone; mkdir gone; echo made > gone/made", "echo theirs > gone/new",
			[]string{"in a directory\n"}, map[string]string{"gone/made": "made\n", "gone/new": "theirs\n"},
		},
		"a replaced file":       {"rm file; echo made > file", "echo theirs >> file", []string{"a file\n"}, map[string]string{"file": "made\ntheirs\n"}},
		"a directory that went": {"rm dir/file", "mv dir elsewhere", []string{"below\n"}, map[string]string{"elsewhere/other": "other\n"}},
		"nothing":               {"rm -r gone; rm file; echo made > made", "", nil, map[string]string{"gone/file": "in a directory\n", "file": "a file\n"}},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBox(t, "mkdir gone dir; echo in a directory > gone/file; echo a file > file; echo below > dir/file; echo other > dir/other")
			b.run(c.sandbox)
			p := b.plan(Options{Since: time.Now().Add(time.Hour)})
			j, err := beginJournal(p.target, false)
			if err != nil {
				t.Fatal(err)
			}
			if err := stage(t.Context(), p, j.dir, map[string]layer.Stamp{}); err != nil {
				t.Fatal(err)
			}
			awaitTick(t.Context())
			r := &run{tree: p.tree, staged: newTree(j.dir), ops: p.steps.ops, begun: time.Now().UnixNano()}
			defer r.staged.forget()
			defer r.tree.forget()
			awaitTick(t.Context())
			if err := r.forward(); err != nil {
				t.Fatal(err)
			}
			b.host(c.host)
			r.tree.forget()
			for range 2 { // a recovery can do the steps again
				if err := r.backward(); err != nil {
					t.Fatal(err)
				}
			}
			r.staged.forget()
			if err := j.discard(); err != nil {
				t.Fatal(err)
			}
			var kept []string
			for _, name := range r.kept {
				content, err := os.ReadFile(filepath.Join(b.tree, name))
				if err != nil {
					content, err = os.ReadFile(filepath.Join(b.tree, name, "file"))
				}
				if err != nil || !strings.HasPrefix(name, keptPrefix) {
					t.Errorf("%s: %v", name, err)
				}
				kept = append(kept, string(content))
			}
			if !slices.Equal(kept, c.kept) {
				t.Errorf("kept are %q, want %q", kept, c.kept)
			}
			for name, want := range c.stays {
				if got, err := os.ReadFile(filepath.Join(b.tree, name)); err != nil || string(got) != want {
					t.Errorf("%s: %q, %v", name, got, err)
				}
			}
		})
	}
}

// A Commit that ends a killed apply changes nothing itself, and names the kept files.
func TestCommitNamesWhatAnEarlierApplyKept(t *testing.T) {
	b := newBox(t, "mkdir dir; echo a file > file; echo below > dir/file")
	b.run("rm file dir/file")
	killed, p := b.plan(Options{Since: time.Now().Add(time.Hour)}), b.plan(Options{Since: time.Now().Add(time.Hour)})
	j, err := beginJournal(killed.target, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := stage(t.Context(), killed, j.dir, map[string]layer.Stamp{}); err != nil {
		t.Fatal(err)
	}
	if err := j.write(&record{Version: recordVersion, Begun: time.Now().UnixNano(), Ops: killed.steps.ops}); err != nil {
		t.Fatal(err)
	}
	r := &run{tree: killed.tree, staged: newTree(j.dir), ops: killed.steps.ops}
	if err := r.doStep(&r.ops[slices.IndexFunc(r.ops, func(o op) bool { return o.Path == "file" })]); err != nil {
		t.Fatal(err)
	}
	r.staged.forget()
	r.tree.forget()
	if err := j.dir.Close(); err != nil {
		t.Fatal(err)
	}
	b.host("echo theirs > file; echo theirs >> dir/file")
	_, err = p.Commit(t.Context())
	kept := keptName.FindAllString(fmt.Sprint(err), -1)
	if err == nil || !strings.Contains(err.Error(), "this apply has changed nothing; try again; files of the host") || len(kept) != 1 {
		t.Fatal(err)
	}
	for name, want := range map[string]string{kept[0]: "a file\n", "file": "theirs\n", "dir/file": "below\ntheirs\n"} {
		if got, err := os.ReadFile(filepath.Join(b.tree, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// A recovery does all steps again, also finished steps.
func TestStepsThatAreDoneAgainChangeNothing(t *testing.T) {
	for _, live := range []bool{false, true} {
		t.Run(fmt.Sprintf("live overlay %v", live), func(t *testing.T) {
			b := newBox(t, "mkdir empty full gone turned; for d in empty full gone turned; do echo old > $d/old; done; echo file > file")
			if live {
				b = b.transaction()
			}
			b.run("rm -r empty full gone turned file; mkdir empty full file; echo new > full/new; echo new > turned")
			p := b.plan(Options{})
			j, err := beginJournal(p.target, false)
			if err != nil {
				t.Fatal(err)
			}
			if err := stage(t.Context(), p, j.dir, map[string]layer.Stamp{}); err != nil {
				t.Fatal(err)
			}
			r := &run{tree: p.tree, staged: newTree(j.dir), ops: p.steps.ops}
			for range 2 {
				if err := r.forward(); err != nil {
					t.Fatal(err)
				}
			}
			r.staged.forget()
			r.tree.forget()
			if err := j.discard(); err != nil {
				t.Fatal(err)
			}
			b.asMerged()
		})
	}
}
