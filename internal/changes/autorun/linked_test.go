package autorun

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// TestLinked has a home with links as dotfiles.
func TestLinked(t *testing.T) {
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"dotfiles/config/git", "dotfiles/vimfiles/plugin", "other", "odd:name", ".git/hooks", ".zsh/a"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"dotfiles/shell", "dotfiles/config/git/settings", "other/shell", ".zshrc", "odd:name/rc", "scripts", "aliases", "jobs", "project", "settings"} {
		if err := os.WriteFile(filepath.Join(home, file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		".bashrc": "dotfiles/shell", ".profile": "other/shell", ".config": "dotfiles/config", ".vim": home + "/dotfiles/vimfiles",
		".envrc": "missing", ".screenrc": ".screenrc", "dots": "dotfiles",
		".inputrc": "odd:name/rc", ".git/hooks/pre-commit": "../../scripts", ".zsh/a/b.zsh": "../../aliases", ".zsh/home": "..",
		"lefthook.yml": "jobs", "a.code-workspace": "project", "mise.local.toml": "settings",
	} {
		if err := os.Symlink(target, filepath.Join(home, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ tree, path string }{
		{home + "/dotfiles", home + "/dotfiles/shell"},
		{home + "/dotfiles", home + "/dotfiles/config/git/settings"},
		{home + "/dots", home + "/dotfiles/shell"},
		{home + "/dotfiles/vimfiles/plugin", home + "/dotfiles/vimfiles/plugin/x.vim"},
		{home, home + "/other/shell"},
		{home, home + "/odd:name/rc"},
		{home, home + "/scripts"},
		{home, home + "/missing"},
		{home, home + "/aliases"},
		{home, home + "/jobs"},
		{home, home + "/project"},
		{home, home + "/settings"},
	} {
		m := New(nil, Linked(test.tree, home)...)
		if mark, _ := m.Path(test.path, spec.Change{Kind: spec.Modified, Type: spec.TypeFile}); !mark.Held {
			t.Errorf("%s of %s has the mark %+v", test.path, test.tree, mark)
		}
	}
	if mark, ok := New(nil, Linked(home, home)...).Path(home+"/readme", spec.Change{Kind: spec.Modified, Type: spec.TypeFile}); ok {
		t.Errorf("an ordinary file has the mark %+v", mark)
	}
	if found := Linked(home+"/other", filepath.Join(home, "dotfiles"), "", "relative"); len(found) > 0 {
		t.Errorf("found %+v", found)
	}
	m := New(nil, Linked(home+"/dotfiles", home)...)
	if mark, ok := m.Path(home+"/other/shell", spec.Change{Kind: spec.Modified, Type: spec.TypeFile}); ok {
		t.Errorf("a file of another tree has the mark %+v", mark)
	}
}
