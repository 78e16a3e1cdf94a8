package apply

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
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
			j, err := begin(p.target)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.stage(t.Context(), j, map[string]layer.Stamp{}); err != nil {
				t.Fatal(err)
			}
			awaitTick(t.Context())
			r := &run{tree: p.tree, staged: newTree(j.dir), ops: p.ops, begun: time.Now().UnixNano()}
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
	j, err := begin(killed.target)
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.stage(t.Context(), j, map[string]layer.Stamp{}); err != nil {
		t.Fatal(err)
	}
	if err := j.write(&record{Version: recordVersion, Begun: time.Now().UnixNano(), Ops: killed.ops}); err != nil {
		t.Fatal(err)
	}
	r := &run{tree: killed.tree, staged: newTree(j.dir), ops: killed.ops}
	if err := r.do(&r.ops[slices.IndexFunc(r.ops, func(o op) bool { return o.Path == "file" })]); err != nil {
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

// An apply that overwrites changes of others can keep these files under new names, also if it was killed.
func TestOverwrittenFilesOfTheHostAreKept(t *testing.T) {
	for _, killed := range []bool{false, true} {
		for _, live := range []bool{false, true} {
			t.Run(fmt.Sprintf("killed %v, live overlay %v", killed, live), func(t *testing.T) { testOverwritten(t, killed, live) })
		}
	}
}

func testOverwritten(t *testing.T, killed, live bool) {
	t.Helper()
	b := newBox(t, "mkdir dir; for f in same changed late deleted dir/f; do echo old > $f; done")
	if live {
		b = b.transaction()
	}
	b.run("for f in same changed late made; do echo new > $f; done; rm -r deleted dir")
	b.host("echo theirs > changed; echo theirs > deleted; echo theirs > dir/f; echo theirs > made")
	p := b.plan(Options{Overwrite: true, Keep: true, Source: "box"})
	b.host("echo late > late")
	var kept []string
	if killed {
		kept = b.killedAndRecovered(p)
	} else {
		report, err := p.Commit(t.Context())
		if err := errors.Join(err, p.Close()); err != nil {
			t.Fatal(err)
		}
		kept = report.Overwritten
	}
	var contents []string
	for _, name := range kept {
		sh(t, b.tree, "[[ "+name+" == "+keptPrefix+"* ]]")
		found, err := exec.Command("/bin/sh", "-c", `cd "$0" && find "$1" -type f -exec cat {} +`, b.tree, name).Output()
		if err != nil {
			t.Fatal(err)
		}
		contents = append(contents, strings.Fields(string(found))...)
	}
	slices.Sort(contents)
	if !slices.Equal(contents, []string{"late", "theirs", "theirs", "theirs", "theirs"}) {
		t.Errorf("kept are %q with %q", kept, contents)
	}
	sh(t, b.tree, "rm -r "+strings.Join(kept, " "))
	b.asMerged()
}

// killedAndRecovered ends a plan as a recovery does after a kill: the steps are done, and the first entry is kept.
func (b *box) killedAndRecovered(p *Plan) []string {
	t := b.t
	t.Helper()
	j, err := begin(p.target)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.stage(t.Context(), j, map[string]layer.Stamp{}); err != nil {
		t.Fatal(err)
	}
	if err := j.write(&record{Version: recordVersion, Source: p.o.Source, Begun: time.Now().UnixNano(), Ops: p.ops}); err != nil {
		t.Fatal(err)
	}
	r := &run{tree: p.tree, staged: newTree(j.dir), ops: p.ops}
	err = r.forward()
	for i := range r.ops {
		if o := &r.ops[i]; err == nil && o.Keep == keepAlways && len(r.overwritten) == 0 {
			var name string
			name, err = r.moveAside(o)
			r.overwritten = append(r.overwritten, name)
		}
	}
	r.staged.forget()
	r.tree.forget()
	if err := errors.Join(err, j.dir.Close()); err != nil {
		t.Fatal(err)
	}
	recovered, err := RecoverAndTell(openDir(t, b.tree), func(string, map[string]layer.Stamp) error { return nil })
	if err != nil || !recovered.Finished || len(recovered.Kept) > 0 {
		t.Fatalf("%+v, %v", recovered, err)
	}
	return slices.Concat(r.overwritten, recovered.Overwritten)
}
