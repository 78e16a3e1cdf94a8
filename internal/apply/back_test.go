package apply

import (
	"os"
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
