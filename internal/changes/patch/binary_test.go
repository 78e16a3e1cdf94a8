package patch_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/patch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/layertest"
)

// TestGitAppliesBinaryFiles applies each patch and takes it back, in a directory
// and in a repository.
func TestGitAppliesBinaryFiles(t *testing.T) {
	for _, test := range []struct{ name, lower, edit string }{
		{"a new file", "", "printf 'b\\0' >x"},
		{"a new program", "", "printf 'b\\0' >x; chmod +x x"},
		{"a NUL alone", "", "printf '\\0' >x"},
		{"a removal", "printf 'b\\0' >x", "rm x"},
		{"a removal of a program", "printf 'b\\0' >x; chmod +x x", "rm x"},
		{"an edit", "printf 'a\\0' >x", "printf 'b\\0' >x"},
		{"an edit of a program", "printf 'a\\0' >x; chmod +x x", "printf 'b\\0' >x"},
		{"an edit and a mode", "printf 'a\\0' >x; printf 'a\\0' >y; chmod +x y", "printf 'b\\0' >x; chmod +x x; printf 'b\\0' >y; chmod -x y"},
		{"a mode", "printf 'a\\0' >x", "chmod +x x"},
		{"an empty file", ": >x; printf '\\0' >y; : >z", "printf '\\0' >x; : >y; rm z; : >w; printf '\\0' >zz"},
		{"a text that was binary", "printf 'b\\0' >x", "echo a >x"},
		{"a binary that was text", "echo a >x", "printf 'b\\0' >x"},
		{"a binary between texts", "seq 9 >a; printf '\\0' >b; seq 9 >c", "echo 1 >>a; printf '\\0\\0' >b; echo 1 >>c"},
		{"a binary after an empty file and a mode", ": >w; echo v >v; printf 'b\\0' >x", "chmod +x v w; : >u; printf 'bc\\0' >x; : >y; printf '\\0' >z"},
		{"lines that look like a patch", "", "printf 'literal 4\\n\\ndiff --git a/x b/x\\n\\0' >x; printf 'GIT binary patch\\nliteral 3\\nabc\\n' >y"},
		{"a link that was a binary", "printf 'b\\0' >x", "ln -sf to x"},
		{"a binary that was a link", "ln -s to x", "rm x; printf 'b\\0' >x"},
		{"a directory that was a binary", "printf 'b\\0' >x", "rm x; mkdir x; printf 'a\\0' >x/f"},
		{"a binary that was a directory with binaries", "mkdir -p x/y; printf 'b\\0' >x/y/z; printf 'b\\0' >x/f", "rm -r x; printf 'c\\0' >x"},
		{"names", "printf '\\0' >'a b'; printf '\\0' >'c\nd'", "printf 'x\\0' >'a b'; rm 'c\nd'; printf '\\0' >' '; printf '\\0' >'\"q\"\\'; printf '\\0' >\"$(printf '\\377\\r')\"; printf '\\0' >-p0; mkdir dev; printf '\\0' >dev/null"},
		{"hard links", "", "printf 'b\\0' >x; ln x y"},
		{"the largest file", "head -c 16777216 /dev/zero >x", "head -c 16777216 /dev/urandom >x"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := edited(t, test.lower, test.edit)
			d, leftOut := diffAs(t, o, patch.Options{})
			for _, line := range leftOut {
				if !strings.Contains(line, "its hard link") {
					t.Errorf("left out: %s", line)
				}
			}
			appliesBothWays(t, o, d)
		})
	}
}

// TestGitAppliesRandomBinaryFiles has files of sizes about the length of a line.
func TestGitAppliesRandomBinaryFiles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	o := layertest.New(t)
	write := func(dir string, size int) {
		content := make([]byte, size)
		for i := range content {
			content[i] = byte(r.Uint32())
		}
		if size > 0 {
			content[r.IntN(min(size, 8000))] = 0
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(size)), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sizes := []int{255, 256, 4095, 8001, 65535, 65536, 1 << 20}
	for size := range 120 {
		sizes = append(sizes, size)
	}
	for _, size := range sizes {
		if size%3 > 0 {
			write(o.Lower, size)
		}
	}
	o.Mount(t)
	for _, size := range sizes {
		if size%3 < 2 {
			write(o.Merged, size)
		}
	}
	appliesBothWays(t, o, diff(t, o))
}

// appliesBothWays applies a patch with git, and takes it back.
func appliesBothWays(t *testing.T, o *layertest.Overlay, patch string) {
	t.Helper()
	before, after := layertest.Tree(t, o.Lower, 0), layertest.Tree(t, o.Merged, 0)
	for _, kind := range []string{"directory", "repository"} {
		dir := filepath.Join(filepath.Dir(o.Lower), kind)
		run(t, "", "cp", "-a", o.Lower, dir)
		if kind == "repository" {
			git(t, dir, "", "init", "--quiet", "--object-format=sha1")
			git(t, dir, "", "add", "--all")
		}
		git(t, dir, patch, "apply", "-")
		layertest.Same(t, treeWithoutGit(t, dir), after)
		git(t, dir, patch, "apply", "-R", "-")
		layertest.Same(t, treeWithoutGit(t, dir), before)
	}
}

func git(t *testing.T, dir, stdin string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("git %q: %v\n%s\nfor this patch:\n%.5000s", args, err, out, stdin)
	}
}

// treeWithoutGit describes a tree without git's directory at the top.
func treeWithoutGit(t *testing.T, dir string) map[string]string {
	t.Helper()
	tree := layertest.Tree(t, dir, 0)
	for path := range tree {
		if path == ".git" || strings.HasPrefix(path, ".git/") {
			delete(tree, path)
		}
	}
	return tree
}

// TestEachEmptyDirectoryIsListed has 100,000 empty directories.
func TestEachEmptyDirectoryIsListed(t *testing.T) {
	const count = 100000
	o := layertest.New(t)
	for i := range count {
		if err := os.Mkdir(filepath.Join(o.Upper, fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	listed := map[string]bool{}
	list := func(path, reason string) { listed[path] = reason == "an empty directory" }
	if err := patch.Write(io.Discard, patch.Options{}, patch.Tree{Stack: o.Stack(t), LeftOut: list}); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		if !listed[fmt.Sprint(i)] {
			t.Fatalf("%d is not in a list of %d", i, len(listed))
		}
	}
}
