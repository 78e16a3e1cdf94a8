package autorun

import (
	"path"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func created(typ spec.FileType) spec.Change { return spec.Change{Kind: spec.Created, Type: typ} }

// isRepository plays the host: /repo has a file HEAD.
func isRepository(dir string) bool { return dir == "/repo" }

func TestEachEntryHasAnExample(t *testing.T) {
	rows := examples()
	whole := New(isRepository)
	for _, e := range Entries() {
		row, ok := rows[e.Pattern]
		if !ok {
			t.Errorf("%s has no example", e.Pattern)
			continue
		}
		delete(rows, e.Pattern)
		alone := markerOf([]Entry{e}, isRepository)
		c := created(spec.TypeFile)
		mark, ok := alone.Path(row.match, c)
		if !ok || mark.Held != e.Held || mark.Reason != e.Reason {
			t.Errorf("%s: %s has the mark %+v, %t", e.Pattern, row.match, mark, ok)
		}
		if mark, ok := alone.Path(row.miss, c); ok {
			t.Errorf("%s: %s has the mark %+v", e.Pattern, row.miss, mark)
		}
		if mark, _ := whole.Path(row.match, c); e.Held && !mark.Held {
			t.Errorf("%s: %s is only marked in the whole table: %s", e.Pattern, row.match, mark.Reason)
		}
		if mark, ok := alone.Path(strings.ToUpper(row.match), c); !ok && e.When == "" {
			t.Errorf("%s: %s in capitals has no mark: %+v", e.Pattern, row.match, mark)
		}
	}
	for pattern := range rows {
		t.Errorf("%s is no entry", pattern)
	}
}

func TestEntriesAreWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range Entries() {
		key := e.Pattern + string(e.When)
		if seen[key] {
			t.Errorf("%s is there twice", e.Pattern)
		}
		seen[key] = true
		if e.Reason == "" || strings.HasSuffix(e.Pattern, "/") || strings.ContainsAny(e.Pattern, "?[\\") {
			t.Errorf("%+v", e)
		}
		if first, _, _ := strings.Cut(strings.TrimPrefix(e.Pattern, "/"), "/"); strings.HasPrefix(e.Pattern, "/") && strings.Contains(first, "*") {
			t.Errorf("%s: an absolute pattern begins with a name without wildcards", e.Pattern)
		} else if strings.HasPrefix(first, "*") && (path.Ext(first) == "" || strings.Count(first, "*") > 1) {
			t.Errorf("%s: a wildcard at the begin needs an extension", e.Pattern)
		}
	}
}

// TestWaysAroundTheTable tries the spellings and shapes with which a sandbox could
// bring a path that runs.
func TestWaysAroundTheTable(t *testing.T) {
	m := New(isRepository)
	opaque := spec.Change{Kind: spec.Modified, Type: spec.TypeDirectory, Was: spec.TypeDirectory, Opaque: true}
	kept := spec.Change{Kind: spec.Modified, Type: spec.TypeDirectory}
	was := func(typ, was spec.FileType) spec.Change {
		return spec.Change{Kind: spec.Modified, Type: typ, Was: was}
	}
	modified := spec.Change{Kind: spec.Modified, Type: spec.TypeFile}
	for _, test := range []struct {
		name, path string
		c          spec.Change
		held       bool
	}{
		{"a hook, deep", "/p/a/b/c/.git/hooks/x", created(spec.TypeFile), true},
		{"a directory of hooks", "/p/.git/hooks", created(spec.TypeDirectory), true},
		{"a repository that is made", "/p/.git", created(spec.TypeDirectory), true},
		{"a repository that is replaced", "/p/.git", opaque, true},
		{"a repository in place of a file", "/p/.git", was(spec.TypeDirectory, spec.TypeFile), true},
		{"a repository that stays", "/p/.git", kept, false},
		{"a commit in one that stays", "/p/.git/objects/ab/cd", created(spec.TypeFile), false},
		{"its HEAD", "/p/.git/HEAD", modified, false},
		{"a HEAD that comes in one that stays", "/p/.git/logs/HEAD", created(spec.TypeFile), false},
		{"a pointer to a repository", "/p/.git", created(spec.TypeFile), true},
		{"a pointer that changes", "/p/.git", modified, true},
		{"a link to a repository", "/p/.git", created(spec.TypeSymlink), true},
		{"a link in place of a repository", "/p/.git", was(spec.TypeSymlink, spec.TypeDirectory), true},
		{"a link for hooks", "/p/.git/hooks", created(spec.TypeSymlink), true},
		{"a link to a directory with tasks", "/p/.vscode", created(spec.TypeSymlink), true},
		{"a link for all of a user's configuration", "/home/ann/.config", created(spec.TypeSymlink), true},
		{"a link above two names", "/home/ann/.local/share", created(spec.TypeSymlink), true},
		{"a directory above is none", "/home/ann/.local/share", created(spec.TypeDirectory), false},
		{"a link as a start file", "/home/ann/.bashrc", created(spec.TypeSymlink), true},
		{"capitals", "/p/.GIT/Hooks/x", created(spec.TypeFile), true},
		{"a long s", "/home/ann/.ſſh/authorized_keys", created(spec.TypeFile), true},
		{"a sharp s", "/home/ann/.ßh/authorized_keys", created(spec.TypeFile), true},
		{"a Kelvin sign", "/p/.git/hooKs/x", created(spec.TypeFile), true},
		{"a character that is ignored", "/p/.g\u200cit/hooks/x", created(spec.TypeFile), true},
		{"the short name of NTFS", "/p/git~1/hooks/x", created(spec.TypeFile), true},
		{"what NTFS drops", "/p/.git. ./hooks/x", created(spec.TypeFile), true},
		{"a stream of NTFS", "/p/.git::$INDEX_ALLOCATION/hooks/x", created(spec.TypeFile), true},
		{"a bare repository of a usual name", "/p/x.git/hooks/x", created(spec.TypeFile), true},
		{"a bare repository that is made", "/p/innocent/HEAD", created(spec.TypeFile), true},
		{"a bare repository in a directory that has the name of one", "/p/x.git/y/HEAD", created(spec.TypeFile), true},
		{"a bare repository in the host's", "/p/.git/y/HEAD", created(spec.TypeFile), true},
		{"a bare repository in the place of a directory", "/p/innocent/HEAD", was(spec.TypeFile, spec.TypeDirectory), true},
		{"a bare repository below the place of a worktree", "/p/x.git/worktrees/a/b/HEAD", created(spec.TypeFile), true},
		{"a bare repository in the place of a worktree", "/p/x.git/worktrees/a/config", created(spec.TypeFile), true},
		{"a bare repository in the place of references", "/p/x.git/refs/y/objects", created(spec.TypeDirectory), true},
		{"the HEAD of a remote", "/p/.git/refs/remotes/origin/HEAD", created(spec.TypeFile), false},
		{"the HEAD of a submodule", "/p/.git/modules/a/b/HEAD", created(spec.TypeFile), false},
		{"the HEAD of a worktree", "/p/.git/worktrees/a/HEAD", created(spec.TypeFile), false},
		{"the log of a worktree's HEAD", "/p/.git/worktrees/a/logs/HEAD", created(spec.TypeFile), false},
		{"a HEAD that is there", "/p/innocent/HEAD", modified, false},
		{"a bare repository of the host", "/repo/config", modified, true},
		{"its hooks", "/repo/hooks/update", created(spec.TypeFile), true},
		{"a configuration of something else", "/p/config", modified, false},
		{"a submodule", "/p/.git/modules/a/b/hooks/x", created(spec.TypeFile), true},
		{"a submodule's configuration", "/p/.git/modules/a/config", modified, true},
		{"a worktree's other repository", "/p/.git/worktrees/w/commondir", modified, true},
		{"a unit in a tree that is overlaid at its directory", "/home/ann/.config/systemd/user/x.service", created(spec.TypeFile), true},
		{"a name with a newline", "/p/a\nb/.envrc", created(spec.TypeFile), true},
		{"a name that is not UTF-8", "/p/\xff/.envrc", created(spec.TypeFile), true},
		{"the root alone", "/", kept, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if mark, _ := m.Path(test.path, test.c); mark.Held != test.held {
				t.Errorf("%q has the mark %+v", test.path, mark)
			}
		})
	}
}

// What is gone does not run, but it may have protected.
func TestDeletedPathsAreOnlyMarked(t *testing.T) {
	m := New(nil)
	for path, typ := range map[string]spec.FileType{
		"/p/.git/hooks/pre-push": spec.TypeFile, "/p/.envrc": spec.TypeFile, "/p/.git": spec.TypeDirectory,
		"/p/.github": spec.TypeDirectory, "/p/.vscode": spec.TypeDirectory,
	} {
		mark, ok := m.Path(path, spec.Change{Kind: spec.Deleted, Type: typ})
		if !ok || mark.Held {
			t.Errorf("%s has the mark %+v, %t", path, mark, ok)
		}
	}
}

func TestOrdinaryPathsHaveNoMark(t *testing.T) {
	m := New(isRepository)
	for _, path := range []string{
		"/p/README.md", "/p/src/main.go", "/p/bin/head", "/p/src/hooks/useState.ts", "/p/.gitignore", "/p/.editorconfig",
		"/p/config/app.json", "/p/docs/environment.md", "/p/.cache/x", "/p/go.mod", "/p/x.json", "/p/.git/index",
		"/p/.git/refs/heads/main", "/p/.git/COMMIT_EDITMSG", "/p/target/debug/x",
	} {
		if mark, ok := m.Path(path, created(spec.TypeFile)); ok {
			t.Errorf("%s has the mark %+v", path, mark)
		}
	}
}

func BenchmarkPath(b *testing.B) {
	m := New(isRepository)
	c := created(spec.TypeFile)
	for b.Loop() {
		m.Path("/home/ann/projects/app/node_modules/left-pad/dist/module/index.js", c)
	}
}

func BenchmarkNew(b *testing.B) {
	home := b.TempDir()
	for b.Loop() {
		New(isRepository, Linked(home, home, "/root")...)
	}
}
