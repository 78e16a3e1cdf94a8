package patch_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/patch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/layertest"
)

// tools are those that take patches. Each is to leave what the sandbox saw.
var tools = map[string][]string{
	"git":   {"git", "apply", "-"},
	"patch": {"patch", "-p1", "--batch", "--no-backup-if-mismatch"},
}

// edited is an overlay with the files of one script, in which another one ran.
func edited(t testing.TB, lower, edit string) *layertest.Overlay {
	t.Helper()
	o := layertest.New(t)
	run(t, o.Lower, "sh", "-ec", lower)
	o.Mount(t)
	run(t, o.Merged, "sh", "-ec", edit)
	return o
}

// diff is what was written to an overlay.
func diff(t testing.TB, o *layertest.Overlay) string {
	t.Helper()
	d, _ := diffAs(t, o, patch.Options{})
	return d
}

// diffAs returns the diff and a line for each path that it does not hold.
func diffAs(t testing.TB, o *layertest.Overlay, options patch.Options) (text string, leftOut []string) {
	t.Helper()
	var b bytes.Buffer
	list := func(path, reason string) { leftOut = append(leftOut, path+": "+reason) }
	if err := patch.Write(&b, options, patch.Tree{Stack: o.Stack(t), LeftOut: list}); err != nil {
		t.Fatal(err)
	}
	return b.String(), leftOut
}

// applied is a copy of the lower tree after a tool has applied a diff.
func applied(t testing.TB, o *layertest.Overlay, tool, diff string) string {
	t.Helper()
	dir := filepath.Join(filepath.Dir(o.Lower), tool)
	run(t, "", "cp", "-a", o.Lower, dir)
	args := tools[tool]
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(diff)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s\nfor this patch:\n%.5000s", tool, err, out, diff)
	}
	return dir
}

func run(t testing.TB, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", args, err, out)
	}
}

// TestToolsTakeAPatch does single things in a sandbox; what git apply and patch
// make of the diff of it is what the sandbox saw.
func TestToolsTakeAPatch(t *testing.T) {
	for _, test := range []struct{ name, lower, edit string }{
		{"an edit", "seq 100 >f", "sed -i -e 50d -e 99s/9/x/ f"},
		{"two edits near each other", "seq 100 >f", "sed -i -e 50d -e 55d f"},
		{"an edit of the first line and the last", "seq 9 >f", "sed -i -e 1d -e 9d f"},
		{"a file", "", "echo a >f"},
		{"a program", "", "echo a >f; chmod +x f"},
		{"a file in directories that are new", "", "mkdir -p a/b; echo a >a/b/f"},
		{"a file that is gone", "echo a >f", "rm f"},
		{"the last files of a directory", "mkdir d; echo a >d/f; echo b >d/g", "rm -r d"},
		{"an empty file", "", ": >f"},
		{"an empty file that is gone", ": >f; : >g", "rm f"},
		{"a file that is empty now", "echo a >f", ": >f"},
		{"a file that was empty", ": >f", "echo a >f"},
		{"no newline at the end", "printf 'a\\nb' >f", "printf 'a\\nc' >f"},
		{"a newline at the end", "printf 'a\\nb' >f", "echo >>f"},
		{"no newline any more", "echo a >f", "printf a >f"},
		{"no newline in a new file, and in one that is gone", "printf a >f", "rm f; printf b >g"},
		{"CRLF", "printf 'a\\r\\nb\\r\\n' >f; printf 'a\\nb\\n' >g", "printf 'a\\r\\nc\\r\\n' >f; printf 'a\\r\\nb\\r\\n' >g; printf 'n\\r\\n' >h"},
		{"a mode", "echo a >f; echo b >g; chmod +x g", "chmod +x f; chmod -x g"},
		{"a mode and an edit", "echo a >f", "chmod +x f; echo b >>f"},
		{"a mode of a binary", "head -c 100 /dev/zero >f", "chmod +x f"},
		{"a link", "", "ln -s to l; ln -s /etc/passwd m; ln -s ../../x n"},
		{"a link that is gone", "ln -s to l", "rm l"},
		{"a link to elsewhere", "ln -s to l; ln -s to m", "ln -sfn /other l; touch -h m"},
		{"a link with a newline in its target", "", "ln -s 'a\nb\n' l"},
		{"a file instead of a link", "ln -s to l", "rm l; echo a >l"},
		{"a link instead of a file", "echo a >f", "ln -sf to f"},
		{"an empty file instead of a link", "ln -s to l", "rm l; : >l"},
		{"a link instead of an empty file", ": >f", "ln -sf to f"},
		{"an opaque directory", "mkdir -p d/e; echo a >d/f; echo b >d/g; echo c >d/e/h; : >d/i", "rm -r d; mkdir d; echo x >d/g; echo y >d/new"},
		{"hard links", "echo a >f", "echo b >g; ln g h; ln f i"},
		{"a directory and back", "mkdir d; echo a >d/f", "rm -r d; echo b >d; rm d; mkdir d; echo a >d/f; echo x >d/g"},
		{"names with spaces", "echo a >'a b'; echo a >' c '; echo m >'m m'", "echo b >>'a b'; rm ' c '; echo n >'n '; : >'o o'; chmod +x 'm m'"},
		{"names with control characters", "echo a >'a\tb'; echo a >'c\nd'", "echo b >>'a\tb'; rm 'c\nd'; echo x >'e\n+++ b'; : >'\033[2J'; printf x >\"$(printf 'g\\r')\""},
		{"names with quotes", `echo a >'"q"'; echo a >'b\n'`, `echo b >>'"q"'; rm 'b\n'; echo c >"'"; : >'\'`},
		{"names that are not UTF-8", "echo a >\"$(printf '\\377')\"", "echo b >>\"$(printf '\\377')\"; echo c >ü; : >\"$(printf 'x\\303')\""},
		{"names that look like others", "mkdir a b; echo a >a/f; echo b >b/f", "echo x >>a/f; rm b/f; echo x >'a/f b'; mkdir dev; echo x >dev/null; echo y >-p0; mkdir 'f b'; echo z >'f b/f'"},
		{"a long name", "", "echo a >$(printf %247s | tr ' ' n)"}, // patch adds a suffix for its own files
		{"lines that look like a patch", "printf -- '-- a/f\\n++ b/f\\n' >f", "printf -- '-- b\\n@@ -1 +1 @@\\ndiff --git a/g b/g\\nold mode 100644\\n' >f; printf -- '--- a/x\\n+++ b/x\\n' >g"},
		{"a NUL that git does not look for", "seq 3000 >f", "printf 'a\\0b\\n' >>f; seq 3000 >g; printf '\\0\\n' >>g"},
		{"more lines than are compared", "yes '' | head -n 262145 >f; printf x >g", "echo a >f; yes b | head -n 262145 >g; printf end >>g"},
		{"many lines alike", "yes | head -n 500 >f", "sed -i -e 100i\\n -e 300d f"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := edited(t, test.lower, test.edit)
			d := diff(t, o)
			want := layertest.Tree(t, o.Merged, 0)
			for tool := range tools {
				layertest.Same(t, layertest.Tree(t, applied(t, o, tool, d), 0), want)
			}
		})
	}
}

// TestDirectoriesTakeFilesPlaces is for git alone: patch removes files last.
func TestDirectoriesTakeFilesPlaces(t *testing.T) {
	for _, test := range []struct{ name, lower, edit, note string }{
		{"a directory instead of a file", "echo a >x", "rm x; mkdir x; echo b >x/f", "a directory instead of a file"},
		{"a directory instead of a link", "mkdir d; echo a >d/f; ln -s d x", "rm x; mkdir x; echo b >x/f; : >x/a", "a directory instead of a symlink"},
		{"a file instead of a directory", "mkdir -p x/y; echo a >x/f; : >x/y/e; ln -s f x/y/l", "rm -r x; echo b >x", "a file instead of a directory"},
		{"a link instead of a directory", "mkdir x; echo a >x/f; echo a >'x y'", "rm -r x; ln -s to x; echo z >x.c", "a symlink instead of a directory"},
		{"a file instead of an empty directory", "mkdir x", "rmdir x; : >x", "a file instead of a directory"},
		{"a file instead of a directory in one that is opaque", "mkdir -p d/x; echo a >d/x/f; echo b >d/g", "rm -r d; mkdir d; echo b >d/x", "a file instead of a directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := edited(t, test.lower, test.edit)
			d := diff(t, o)
			if want := "# Only git apply can do this: "; !strings.Contains(d, want) || !strings.Contains(d, "x, "+test.note+"\n") {
				t.Errorf("no line %q in\n%s", want, d)
			}
			layertest.Same(t, layertest.Tree(t, applied(t, o, "git", d), 0), layertest.Tree(t, o.Merged, 0))
		})
	}
}

// TestPatchListsANewFileOfGitsOnce is a commit in the sandbox: its objects are read-only.
func TestPatchListsANewFileOfGitsOnce(t *testing.T) {
	o := edited(t, "mkdir .git; echo a >.git/config", "echo x >.git/object; chmod 444 .git/object; ln .git/object .git/other; chmod 600 .git/config; mkdir .git/empty")
	text, got := diffAs(t, o, patch.Options{})
	want := []string{
		".git/config: its mode 0600", ".git/empty: an empty directory",
		".git/object: git apply refuses this name", ".git/other: git apply refuses this name",
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed are %q, want %q", got, want)
	}
	if want := "# Not in this patch: .git/object, its mode 0444\n"; !strings.Contains(text, want) {
		t.Errorf("no line %q in\n%s", want, text)
	}
}

// TestPatchNamesWhatItCannotHave holds that the rest of the patch applies, that
// a comment in the patch names each omission, and that the list names it too.
func TestPatchNamesWhatItCannotHave(t *testing.T) {
	const (
		large       = "a file of more than 16 MiB"
		replacement = "a patch cannot hold all of this replacement"
		refused     = "git apply refuses this name"
	)
	for _, test := range []struct{ name, lower, edit, line, leftOut string }{
		{"a long file", "", "truncate -s 16777217 x", "# Too large for a patch: files /dev/null and b/x", "x: " + large},
		{"a long file that is gone", "truncate -s 16777217 x", "rm x", "# Too large for a patch: files a/x and /dev/null", "x: the removal of " + large},
		{"a long file that was short", "echo a >x", "truncate -s 16777217 x", "# Too large for a patch: files a/x and b/x", "x: " + large},
		{"a short file that was long", "truncate -s 16777217 x", "echo a >x", "# Too large for a patch: files a/x and b/x", "x: " + large},
		{"a file of a terabyte", "", "truncate -s 1T x", "# Too large for a patch: files /dev/null and b/x", "x: " + large},
		{"a link that was a long file", "truncate -s 16777217 x", "ln -sf to x", "# # Too large for a patch: files a/x and /dev/null", "x: " + replacement},
		{"a directory that was a long file", "truncate -s 16777217 x", "rm x; mkdir x; echo a >x/f", "# +++ b/x/f", "x/f: " + replacement},
		{"a file that was a directory with a long one", "mkdir -p x/y; truncate -s 16777217 x/y/z; echo a >x/f", "rm -r x; echo b >x", "# +++ b/x", "x/f: " + replacement},
		{"a file that was a directory with a fifo", "mkdir x; mkfifo x/z; echo a >x/f", "rm -r x; echo b >x", "# +++ b/x", "x: " + replacement},
		{"a file that was a directory with an empty one", "mkdir -p x/z; echo a >x/f", "rm -r x; echo b >x", "# +++ b/x", "x: " + replacement},
		{"a file that was a directory of git's", "mkdir -p x/.git; echo a >x/.git/f; echo a >x/f", "rm -r x; echo b >x", "# +++ b/x", "x: " + replacement},
		{"a file that was a fifo", "mkfifo x", "rm x; echo b >x", "# +++ b/x", "x: " + replacement},
		{"a fifo that was a file", "echo x >x", "rm x; mkfifo x", "# Not in this patch: x, a fifo", "x: a fifo"},
		{"a fifo", "", "mkfifo x", "# Not in this patch: x, a fifo", "x: a fifo"},
		{"a fifo that is gone", "mkfifo x", "rm x", "# Not in this patch: x, the removal of a fifo", "x: the removal of a fifo"},
		{"an empty directory", "", "mkdir -p x/y", "# Not in this patch: x/y, an empty directory", "x/y: an empty directory"},
		{"an empty directory that is gone", "mkdir x", "rmdir x", "# Not in this patch: x, the removal of an empty directory", "x: the removal of an empty directory"},
		{"an empty directory instead of a fifo", "mkfifo x", "rm x; mkdir x", "# Not in this patch: x, an empty directory", "x: an empty directory"},
		{"a mode", "echo a >x", "chmod 600 x", "# Not in this patch: x, its mode 0600", "x: its mode 0600"},
		{"a mode of a new file", "", "mkdir d; echo x >d/f; chmod 4711 d/f", "# Not in this patch: d/f, its mode 4711", "d/f: its mode 4711"},
		{"a mode of a directory", "mkdir x", "chmod 1777 x", "# Not in this patch: x, its mode 1777", "x: its mode 1777"},
		{"an owner", "echo a >x", "chown 7:8 x", "# Not in this patch: x, its owner 7:8", "x: its owner 7:8"},
		{"a hard link", "", "echo a >'w\tw'; ln 'w\tw' x", `# Not in this patch: x, its hard link to "w\tw"`, `x: its hard link to "w\tw"`},
		{"attributes", "echo a >x", `python3 -c 'import os; os.setxattr("x", "user.b", b""); os.setxattr("x", "user.a", b"")'`, "# Not in this patch: x, its extended attributes user.a, user.b", "x: its extended attributes user.a, user.b"},
		{"removed attributes", `echo a >x; python3 -c 'import os; os.setxattr("x", "user.a", b""); os.setxattr("x", "user.b", b"")'`, `python3 -c 'import os; os.removexattr("x", "user.a"); os.removexattr("x", "user.b")'`,
			"# Not in this patch: x, the removal of its extended attributes user.a, user.b", "x: the removal of its extended attributes user.a, user.b"},
		{"git's own", "mkdir .git; echo a >.git/HEAD", "echo b >>.git/HEAD", "# +++ b/.git/HEAD", ".git/HEAD: " + refused},
		{"a clone", "", "mkdir -p d/.git; echo a >d/.git/HEAD; : >d/.git/x", "# +++ b/d/.git/HEAD", "d/.git/x: " + refused},
		{"git's own binary", "", "mkdir -p d/.git; printf '\\0' >d/.git/index", "# Binary files /dev/null and b/d/.git/index differ", "d/.git/index: " + refused},
		{"git's own on NTFS", "", "mkdir .GIT git~1; echo a >'.GIT/x'; echo a >git~1/y; echo b >'.git . '", "# +++ \"b/.git . \"", ".git . : " + refused},
		{"git's own by a backslash", "", "echo a >'.git\\x'; echo b >.git:b", "# +++ \"b/.git\\\\x\"", ".git\\x: " + refused},
		{"a link for git's modules", "", "ln -s to .gitmodules; ln -s to gitmod~1; ln -s to gi7eba~1", "# +++ b/.gitmodules", ".gitmodules: " + refused},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := edited(t, "echo 1 >zz; "+test.lower, "echo 2 >>zz; "+test.edit)
			d, leftOut := diffAs(t, o, patch.Options{})
			if !strings.Contains("\n"+d, "\n"+test.line+"\n") {
				t.Errorf("no line %q in\n%.2000s", test.line, d)
			}
			if !slices.Contains(leftOut, test.leftOut) {
				t.Errorf("no %q in %q", test.leftOut, leftOut)
			}
			listsEachNote(t, d, leftOut)
			restApplies(t, o, d)
		})
	}
}

// restApplies finds the edit of zz in the result of each tool.
func restApplies(t *testing.T, o *layertest.Overlay, patch string) {
	t.Helper()
	for tool := range tools {
		tree := layertest.Tree(t, applied(t, o, tool, patch), 0)
		if !strings.HasPrefix(tree["zz"], `file false 4 "1\n2\n"`) {
			t.Errorf("after %s: %s", tool, tree["zz"])
		}
	}
}

// listsEachNote finds each note of a patch in the list.
func listsEachNote(t *testing.T, patch string, leftOut []string) {
	t.Helper()
	for line := range strings.Lines(patch) {
		note, ok := strings.CutPrefix(line, "# Not in this patch: ")
		if want := strings.Replace(strings.TrimSuffix(note, "\n"), ", ", ": ", 1); ok && !slices.Contains(leftOut, want) {
			t.Errorf("no %q in %q", want, leftOut)
		}
	}
}

// TestShortDiffNamesBinaryFiles holds that the rest of a short patch applies.
func TestShortDiffNamesBinaryFiles(t *testing.T) {
	for _, test := range []struct{ name, lower, edit, line string }{
		{"a binary", "printf 'a\\0' >x", "printf 'b\\0' >x", "Binary files a/x and b/x differ"},
		{"a binary that was text", "echo a >x", "printf 'b\\0' >x", "Binary files a/x and b/x differ"},
		{"a text that was binary", "printf 'b\\0' >x", "echo a >x", "Binary files a/x and b/x differ"},
		{"a new binary", "", "printf 'b\\0' >x", "Binary files /dev/null and b/x differ"},
		{"a binary that is gone", "printf 'b\\0' >x", "rm x", "Binary files a/x and /dev/null differ"},
		{"a binary after an empty file", "", ": >w; printf 'b\\0' >x", "Binary files /dev/null and b/x differ"},
		{"a binary after an empty file that is gone", ": >w", "rm w; printf 'b\\0' >x", "Binary files /dev/null and b/x differ"},
		{"a binary after a mode", ": >w; echo v >v; printf 'b\\0' >x", "chmod +x v w; printf 'bc\\0' >x", "Binary files a/x and b/x differ"},
		{"a link that was a binary", "printf 'b\\0' >x", "ln -sf to x", "# Binary files a/x and /dev/null differ"},
		{"a directory that was a binary", "printf 'b\\0' >x", "rm x; mkdir x; echo a >x/f", "# +++ b/x/f"},
		{"a file that was a directory with a binary", "mkdir -p x/y; printf 'b\\0' >x/y/z; echo a >x/f", "rm -r x; echo b >x", "# +++ b/x"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := edited(t, "echo 1 >zz; "+test.lower, "echo 2 >>zz; "+test.edit)
			d, leftOut := diffAs(t, o, patch.Options{Short: true})
			if !strings.Contains("\n"+d, "\n"+test.line+"\n") {
				t.Errorf("no line %q in\n%.2000s", test.line, d)
			}
			if len(leftOut) == 0 || !strings.HasPrefix(leftOut[0], "x") {
				t.Errorf("the list is %q", leftOut)
			}
			restApplies(t, o, d)
		})
	}
}

// TestWhatIsTheSameIsInNoPatch: not even comments are, without a change.
func TestWhatIsTheSameIsInNoPatch(t *testing.T) {
	o := layertest.New(t)
	run(t, o.Lower, "sh", "-ec", "echo a >f; echo b >g; ln -s to l; printf 'b\\0' >b")
	o.Mount(t)
	if d := diff(t, o); d != "" {
		t.Errorf("%q", d)
	}
	run(t, o.Merged, "sh", "-ec", "touch f; cat g >h; mv h g; chown -h 7 l b")
	want := "# Owners, times, extended attributes, hard links, empty directories and special files cannot be in a patch.\n" +
		"# Not in this patch: b, its owner 7:0\n# Not in this patch: l, its owner 7:0\n"
	if d := diff(t, o); d != want {
		t.Errorf("%s", d)
	}
}

// TestABusySandboxHasADiff has a file come and go while diffs are written.
func TestABusySandboxHasADiff(t *testing.T) {
	o := layertest.New(t)
	o.Mount(t)
	layertest.Busy(t, o.Merged, func(dir int) {
		f, err := unix.Openat(dir, "f", unix.O_CREAT|unix.O_WRONLY, 0o644)
		if err == nil {
			err = errors.Join(unix.Close(f), unix.Unlinkat(dir, "f", 0))
		}
		if err != nil {
			t.Error(err)
		}
	})
	for range 200 {
		diff(t, o)
	}
}

func TestPrefixIsBeforeEachName(t *testing.T) {
	o := layertest.New(t)
	run(t, o.Lower, "sh", "-ec", "echo a >f; mkdir e; printf '\\0' >b")
	o.Mount(t)
	run(t, o.Merged, "sh", "-ec", "echo b >f; rmdir e; rm b")
	var b bytes.Buffer
	if err := patch.Write(&b, patch.Options{Short: true}, patch.Tree{Stack: o.Stack(t), Prefix: "home/a user"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"home/a user/e", the removal of an empty directory`, `Binary files "a/home/a user/b" and /dev/null differ`,
		`diff --git "a/home/a user/f" "b/home/a user/f"`,
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
}

// TestSeveralTreesAreOnePatch has one tree at two places: the end of the first, which
// has no hunk, is next to the begin of the second, which is binary.
func TestSeveralTreesAreOnePatch(t *testing.T) {
	o := layertest.New(t)
	o.Mount(t)
	run(t, o.Merged, "sh", "-ec", "printf '\\0' >b; echo a >f; : >z")
	var b bytes.Buffer
	if err := patch.Write(&b, patch.Options{Short: true}, patch.Tree{Stack: o.Stack(t), Prefix: "one"}, patch.Tree{Stack: o.Stack(t), Prefix: "two"}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "# Owners"); n != 1 {
		t.Errorf("%d first lines in\n%s", n, &b)
	}
	for tool := range tools {
		dir := applied(t, o, tool, b.String())
		run(t, dir, "sh", "-ec", "for at in one two; do [ $(cat $at/f) = a ]; [ -e $at/z ]; [ ! -s $at/z ]; done")
	}
}

// TestPatchIsSmallerThanGitRefuses: a sandbox makes many names of one file, and a
// patch holds a file for each.
func TestPatchIsSmallerThanGitRefuses(t *testing.T) {
	o := layertest.New(t)
	o.Mount(t)
	run(t, o.Merged, "sh", "-ec", "head -c 16777215 /dev/zero | tr '\\0' a >f; for i in $(seq 64); do ln f $i; done")
	err := patch.Write(io.Discard, patch.Options{}, patch.Tree{Stack: o.Stack(t)})
	if err == nil || !strings.Contains(err.Error(), "larger than 1023 MiB, which git apply refuses; save a .tar") {
		t.Error(err)
	}
}
