package apply

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// holdSecret leaves out each path with the name secret or .git.
func holdSecret(c spec.Change) string {
	if name := path.Base(c.Path); c.Kind != spec.Deleted && (name == "secret" || name == ".git") {
		return "for the test"
	}
	return ""
}

func TestHold(t *testing.T) {
	for _, test := range []struct {
		name, host, inside string
		paths              []string
		held, applied      []string
		want               string // a script, true in the tree afterwards
	}{
		{
			"a file among others", "mkdir d; echo a > d/f", "echo b > d/f; echo s > d/secret", nil,
			[]string{"d/secret"}, []string{"d/f"}, "[ $(cat d/f) = b ]; [ ! -e d/secret ]",
		},
		{
			"a file that changed", "echo a > secret; echo a > f", "echo b > secret; echo b > f", nil,
			[]string{"secret"}, []string{"f"}, "[ $(cat secret) = a ]; [ $(cat f) = b ]",
		},
		{
			"a file that was written again", "echo a > secret; echo a > f", "cp secret n; mv n secret; echo b > f", nil,
			nil, []string{"f"}, "[ $(cat secret) = a ]; [ $(cat f) = b ]",
		},
		{
			"a file of another mode", "echo a > secret", "chmod 755 secret", nil,
			[]string{"secret"}, nil, "[ ! -x secret ]",
		},
		{
			"a new directory, as a whole", "true", "mkdir -p .git/objects; echo x > .git/objects/x; echo y > y", nil,
			[]string{".git", ".git/objects", ".git/objects/x"}, []string{"y"}, "[ ! -e .git ]; [ -e y ]",
		},
		{
			"a replaced directory, as a whole", "mkdir .git; echo a > .git/old", "rm -r .git; mkdir .git; echo b > .git/new", nil,
			[]string{".git", ".git/new"}, nil, "[ -e .git/old ]; [ ! -e .git/new ]",
		},
		{
			"what is in such a directory and chosen", "mkdir .git; echo a > .git/old", "rm -r .git; mkdir .git; echo b > .git/new", []string{".git/old", ".git/new"},
			[]string{".git/new", ".git/old"}, nil, "[ -e .git/old ]; [ ! -e .git/new ]",
		},
		{
			"a directory of nothing else", "true", "mkdir -p a/b/c; echo s > a/b/secret; echo s > a/b/c/secret", nil,
			[]string{"a", "a/b", "a/b/c", "a/b/c/secret", "a/b/secret"}, nil, "[ ! -e a ]",
		},
		{
			"a directory with something else", "true", "mkdir -p a/b a/e; echo s > a/b/secret; echo f > a/f", nil,
			[]string{"a/b", "a/b/secret"}, []string{"a", "a/e", "a/f"}, "[ -e a/f ]; [ -d a/e ]; [ ! -e a/b ]",
		},
		{
			"a chosen path alone", "true", "mkdir a; echo s > a/secret; echo f > a/f", []string{"a/secret"},
			[]string{"a", "a/secret"}, nil, "[ ! -e a ]",
		},
		{
			"a clone in place of a repository", "mkdir -p p/.git; echo h > p/.git/h; echo a > p/f",
			"rm -r p; mkdir -p p/.git; echo n > p/.git/h; echo b > p/f; echo x > x", nil,
			[]string{"p", "p/.git", "p/.git/h", "p/f"}, []string{"x"}, "[ $(cat p/.git/h) = h ]; [ $(cat p/f) = a ]; [ -e x ]",
		},
		{
			"such a clone, deep", "mkdir -p o/p/.git; echo h > o/p/.git/h",
			"rm -r o; mkdir -p o/p/.git; echo n > o/p/.git/h; echo b > o/f", nil,
			[]string{"o", "o/f", "o/p", "o/p/.git", "o/p/.git/h"}, nil, "[ $(cat o/p/.git/h) = h ]; [ ! -e o/f ]",
		},
		{
			"a clone in place of a directory without a repository", "mkdir p; echo a > p/f; echo a > p/old",
			"rm -r p; mkdir -p p/.git; echo n > p/.git/h; echo b > p/f", nil,
			[]string{"p/.git", "p/.git/h"}, []string{"p", "p/f"}, "[ ! -e p/.git ]; [ $(cat p/f) = b ]; [ ! -e p/old ]",
		},
		{
			"a rename", "mkdir d; echo a > d/f", "mv d/f secret", nil,
			[]string{"secret"}, []string{"d/f"}, "[ ! -e d/f ]; [ ! -e secret ]",
		},
		{
			"the first of several names", "true", "echo s > secret; ln secret z1; ln secret z2", nil,
			[]string{"secret"}, []string{"z1", "z2"}, "[ $(cat z1) = s ]; [ z1 -ef z2 ]; [ ! -e secret ]",
		},
		{
			"a link in place of a directory", "mkdir .git; echo h > .git/h", "rm -r .git; ln -s evil .git", nil,
			[]string{".git"}, nil, "[ -e .git/h ]",
		},
		{
			"a directory that is gone is none", "mkdir .git; echo h > .git/h", "rm -r .git", nil,
			nil, []string{".git"}, "[ ! -e .git ]",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBox(t, test.host)
			b.run(test.inside)
			p := b.plan(Options{Hold: holdSecret, Paths: test.paths})
			var held, applied []string
			for _, r := range p.Held() {
				held = append(held, r.Path)
			}
			for _, c := range p.Changes() {
				applied = append(applied, c.Path)
			}
			slices.Sort(held)
			slices.Sort(applied)
			if !slices.Equal(held, test.held) || !slices.Equal(applied, test.applied) {
				t.Errorf("held %q, want %q; applied %q, want %q", held, test.held, applied, test.applied)
			}
			b.commit(p)
			b.host(strings.ReplaceAll(test.want, "; ", "\n"))
			b.apply(Options{Paths: test.paths}) // the layer still has all of it
			if test.paths == nil {
				b.wantSame(describeTree(t, b.merged), describeTree(t, b.tree))
			}
		})
	}
}

// The reasons are compared by the package above.
func TestReasonsOfRefusedRights(t *testing.T) {
	b := newBox(t, "true")
	b.run("echo x > suid; chmod 4755 suid; echo x > cap")
	b.xattr("cap", capability, "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	reasons := map[string]string{}
	for _, r := range b.plan(Options{}).Refused() {
		reasons[r.Path] = r.Reason
	}
	if reasons["suid"] != SetuidBit || reasons["cap"] != Capabilities {
		t.Errorf("%q", reasons)
	}
}
