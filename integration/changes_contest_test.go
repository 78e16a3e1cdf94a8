package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/layertest"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// The host and a sandbox change a tree by turns. Nothing of the host's is lost, and the
// rest becomes what the sandbox saw.
func TestHostEditsSurviveEveryApply(t *testing.T) {
	testhost.Long(t)
	counts := map[string]int{}
	forSeeds(t, func(t *testing.T, ground string, seed int) {
		c := newContest(t, ground, seed, counts)
		for step := range 3 + c.IntN(4) {
			c.actTimes(seed+1000*step, []int{30, 150}[c.IntN(2)]) // many remove most of what was there
			if edits := max(c.IntN(5)-2, 0); edits > 0 {
				c.host.rivals = dirsOf(c.changes())
				for range edits {
					c.host.edit()
				}
			}
			c.step()
		}
	})
	t.Logf("%v", counts)
}

// A contest is a tree that a sandbox and the host change.
type contest struct {
	*wild
	*rand.Rand
	tree   string
	host   *hostEditor
	single bool // no file has two names
	text   bool // a patch can hold all
	counts map[string]int
	flags  []string // of every command
}

func newContest(t *testing.T, ground string, seed int, counts map[string]int) *contest {
	t.Helper()
	c := &contest{Rand: rand.New(rand.NewPCG(uint64(seed), 1)), tree: filepath.Join(ground, "tree"), counts: counts}
	flavour := []string{"autorun"}
	if c.single = c.IntN(3) > 0; c.single {
		flavour = append(flavour, "single")
	}
	if c.text = c.IntN(3) == 0; c.text {
		flavour = append(flavour, "text")
	}
	c.wild = &wild{sandboxes: newSandboxes(t), t: t, dirs: []string{c.tree}, flavour: flavour}
	outside := filepath.Join(ground, "outside")
	c.host = &hostEditor{Rand: c.Rand, t: t, dir: c.tree, outside: outside, changed: newHostChanges()}
	for i, dir := range []string{c.tree, outside} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		c.grow(dir, 2*seed+i)
	}
	c.host.makeTwin()
	c.up("box", "--storage", []string{"memory", "disk"}[c.IntN(2)], "--overlay", c.tree)
	return c
}

// grow has the monkey on the host.
func (c *contest) grow(dir string, seed int) {
	c.t.Helper()
	cmd := exec.Command(hostTool(c.t, "python3"), append([]string{"-c", monkey, dir, fmt.Sprint(seed), "150"}, c.flavour...)...)
	if got := run(c.t, cmd); got.code != 0 {
		c.t.Fatalf("%+v", got)
	}
	own(c.t, dir, wildOwner)
}

// step looks at the changes in some way.
func (c *contest) step() {
	c.t.Helper()
	switch c.IntN(10) {
	case 0:
		c.changes()
	case 1, 2:
		c.savesTar()
	case 3:
		c.savesPatch()
	case 4:
		c.diffs()
	case 5, 6:
		c.applies("--setuid", "--allow-autorun")
		c.appliesSome()
	case 7:
		c.applies()
	case 8:
		c.appliesSome()
	case 9:
		c.discards()
	}
}

const contestParts = layertest.Directories | layertest.Owners | layertest.Times

// seen is what the sandbox sees. What it cannot read must be something that the host has
// changed.
func (c *contest) seen(parts layertest.Parts) map[string]string {
	c.t.Helper()
	root := fmt.Sprintf("/proc/%d/root", c.pid("box"))
	all := layertest.Readable(c.t, root+c.tree, parts, func(path string, err error) {
		if !c.host.changed.concerns(path) {
			c.t.Errorf("the sandbox cannot read %q: %v", path, err)
		}
	})
	return c.ownerless(root+c.tree, all)
}

// ownerless leaves out the number of the tree's owner.
func (c *contest) ownerless(dir string, all map[string]string) map[string]string {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		c.t.Fatal(err)
	}
	owner := fmt.Sprintf(" %d:%d ", st.Uid, st.Gid)
	for path, text := range all {
		text = strings.Replace(text, owner, " its owner ", 1)
		all[path] = strings.Replace(text, " 1000:1000 ", " its owner ", 1) // as an archive has it
	}
	return all
}

// onHost is the tree on the host.
func (c *contest) onHost(parts layertest.Parts) map[string]string {
	c.t.Helper()
	return c.ownerless(c.tree, layertest.Tree(c.t, c.tree, parts))
}

// same compares two trees but for what the host has changed and what was left out.
func (c *contest) same(what string, got, want map[string]string, left *leftOut) {
	c.t.Helper()
	for path := range union(got, want) {
		if c.host.changed.concerns(path) || left.concerns(path) || got[path] == want[path] {
			continue
		}
		c.t.Errorf("%s: %q is\n%.300q\nand not\n%.300q", what, path, got[path], want[path])
	}
}

// box runs a command on the sandbox.
func (c *contest) box(command string, args ...string) result {
	c.t.Helper()
	return run(c.t, c.command(append(append(slices.Clone(c.flags), command), args...)...))
}

// works is box for a command that must work.
func (c *contest) works(command string, args ...string) result {
	c.t.Helper()
	got := c.box(command, args...)
	if got.code != 0 {
		c.t.Errorf("%s: %s", command, answered(got))
	}
	c.counts[command]++
	return got
}

// changes lists the changes and compares nothing.
func (c *contest) changes() (paths []string) {
	c.t.Helper()
	for line := range strings.Lines(c.works("changes", "--json", "box").stdout) {
		var change struct {
			Path       string
			PathBase64 []byte `json:"path_base64"`
		}
		if err := json.Unmarshal([]byte(line), &change); err != nil {
			c.t.Fatalf("%v in %q", err, line)
		}
		rel, err := filepath.Rel(c.tree, change.Path+string(change.PathBase64))
		if err != nil {
			c.t.Fatal(err)
		}
		paths = append(paths, rel)
	}
	return paths
}

// dirsOf are the directories that paths lie in, but for the topmost.
func dirsOf(paths []string) (dirs []string) {
	for _, path := range paths {
		if dir := filepath.Dir(path); dir != "." {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func (c *contest) savesTar() {
	c.t.Helper()
	before := entriesOf(c.t, c.tree)
	file := filepath.Join(c.t.TempDir(), "changes.tar")
	c.works("save", "box", file)
	archive, err := os.Open(file)
	if err != nil {
		c.t.Fatal(err)
	}
	defer archive.Close()
	got, err := layertest.Extracted(c.onHost(contestParts), archive, contestParts)
	if err != nil {
		c.t.Fatal(err)
	}
	c.same("saved", c.ownerless(c.tree, got), c.seen(contestParts), nil)
	c.isUntouched("save", before)
}

func (c *contest) savesPatch() {
	c.t.Helper()
	before := entriesOf(c.t, c.tree)
	file := filepath.Join(c.t.TempDir(), "changes.patch")
	got := c.works("save", "box", file)
	c.isUntouched("save", before)
	c.takesPatch(file, leftOutBy(c.tree, got.stderr))
}

func (c *contest) diffs() {
	c.t.Helper()
	before := entriesOf(c.t, c.tree)
	got := c.works("diff", "box")
	c.isUntouched("diff", before)
	file := filepath.Join(c.t.TempDir(), "diff")
	if err := os.WriteFile(file, []byte(got.stdout), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.takesPatch(file, leftOutBy(c.tree, got.stderr))
}

// takesPatch has git apply a patch to a copy of the tree. The patch need not fit a tree
// that the host has changed.
func (c *contest) takesPatch(file string, left *leftOut) {
	c.t.Helper()
	if !c.text || left.more {
		return
	}
	if st, err := os.Stat(file); err != nil || st.Size() == 0 {
		return // git apply refuses an empty patch
	}
	dir := c.copied() + c.tree
	cmd := exec.Command("git", "apply", "--whitespace=nowarn", file)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		if len(c.host.changed.touched)+len(c.host.changed.marked) == 0 {
			c.t.Errorf("git apply: %v: %s", err, out)
		}
		c.counts["patch does not fit"]++
		return
	}
	c.counts["patch fits"]++
	c.same("patched", c.ownerless(dir, layertest.Tree(c.t, dir, 0)), c.seen(0), left)
}

// isUntouched holds that the host's tree is as before.
func (c *contest) isUntouched(what string, before map[string]treeEntry) {
	c.t.Helper()
	after := entriesOf(c.t, c.tree)
	for path := range union(before, after) {
		if before[path] != after[path] {
			c.t.Errorf("%s: %q is\n%.300v\nand was\n%.300v", what, path, after[path], before[path])
		}
	}
	c.leavesNothingInTree(what)
}

func (c *contest) leavesNothingInTree(what string) {
	c.t.Helper()
	for _, dir := range []string{c.tree, filepath.Dir(c.tree)} {
		if left, err := filepath.Glob(filepath.Join(dir, ".sandbox-runtime-*")); err != nil || len(left) > 0 {
			c.t.Errorf("%s leaves %q, %v", what, left, err)
		}
	}
}

// conflictText is what a refused apply says about changes of the host.
var conflictText = regexp.MustCompile(`since the host has changed meanwhile|the tree is changing: list the changes again`)

// apply applies, and reports whether something was applied, and all of what was left out.
// It holds what is true of every apply.
func (c *contest) apply(args ...string) (done bool, left *leftOut) {
	c.t.Helper()
	before := entriesOf(c.t, c.tree)
	got := c.box("apply", append([]string{"--yes"}, args...)...)
	left = leftOutBy(c.tree, got.stderr)
	applied := strings.Contains(got.stderr, "\napplied ") || strings.Contains(got.stderr, "nothing to apply\n")
	if got.code == 0 || got.code == 1 && applied && strings.Contains(got.stderr, "held back: ") {
		c.counts["applied"]++
		c.keepsAll(before, got)
		c.leavesNothingInTree("apply")
		return true, left
	}
	c.counts["refused"]++
	if !conflictText.MatchString(got.stderr) {
		c.t.Errorf("apply: %s", answered(got))
	}
	c.t.Logf("refused: %.600s", got.stderr)
	c.isUntouched("a refused apply", before)
	return false, left
}

// keepsAll holds that each entry of the host is as the host has left it.
func (c *contest) keepsAll(before map[string]treeEntry, got result) {
	c.t.Helper()
	after := entriesOf(c.t, c.tree)
	for path := range maps.Clone(c.host.changed.left) {
		was, is := before[path], after[path]
		if was.text != is.text {
			c.t.Errorf("lost of the host's: %q is\n%.300q\nand was\n%.300q\n%s", path, is.text, was.text, answered(got))
		}
		if was.ino != is.ino { // the sandbox has made the same: the host's is the sandbox's now
			delete(c.host.changed.left, path)
		}
	}
}

// applies applies all, which makes the tree what the sandbox sees.
func (c *contest) applies(flags ...string) {
	c.t.Helper()
	seen := c.seen(contestParts)
	done, left := c.apply(append(flags, "box")...)
	if !done {
		if c.single && len(c.host.changed.touched)+len(c.host.changed.marked) == 0 {
			c.t.Error("the host has changed nothing, and there is a conflict")
		}
		return
	}
	if left.more {
		return
	}
	c.same("applied", c.onHost(contestParts), seen, left)
	listed := c.changes()
	if len(listed) > 0 && !c.single {
		c.apply(append(flags, "box")...) // the other names of a file
		listed = c.changes()
	}
	// A file is listed as long as another name of it is held back.
	linked := !c.single && len(left.paths) > 0
	for _, path := range listed {
		if !left.concerns(path) && !linked {
			c.t.Errorf("applied, and still listed: %q", path)
		}
	}
}

// appliesSome applies some paths. Others stay as they are.
func (c *contest) appliesSome() {
	c.t.Helper()
	seen, before := c.seen(contestParts), entriesOf(c.t, c.tree)
	listed := c.changes()
	if len(listed) == 0 {
		return
	}
	clean := true
	args, chosen := []string{"--setuid", "box"}, map[string]bool{}
	for range 1 + c.IntN(4) {
		path := listed[c.IntN(len(listed))]
		for range 5 {
			if c.host.changed.concernsAll(path) {
				path = listed[c.IntN(len(listed))]
			}
		}
		chosen[path] = true
		args = append(args, filepath.Join(c.tree, path))
		clean = clean && !c.host.changed.concernsAll(path)
	}
	done, left := c.apply(args...)
	if !done {
		if clean && c.single {
			c.t.Errorf("the host has changed nothing at %q, and there is a conflict", slices.Sorted(maps.Keys(chosen)))
		}
		return
	}
	after := entriesOf(c.t, c.tree)
	for path := range union(before, after) {
		if !isOrBelow(path, chosen) && !isAbove(path, chosen) && before[path].text != after[path].text {
			c.t.Errorf("%q was not chosen, is\n%.300q\nand was\n%.300q", path, after[path].text, before[path].text)
		}
	}
	if left.more {
		return
	}
	host := c.onHost(contestParts)
	for _, all := range []map[string]string{host, seen} {
		maps.DeleteFunc(all, func(path, _ string) bool { return !isOrBelow(path, chosen) })
	}
	c.same("applied", host, seen, left)
}

func isAbove(path string, some map[string]bool) bool {
	for below := range some {
		if strings.HasPrefix(below, path+"/") {
			return true
		}
	}
	return false
}

// discards discards all. The sandbox sees all that the host has changed.
func (c *contest) discards() {
	c.t.Helper()
	before := entriesOf(c.t, c.tree)
	c.works("discard", "box")
	c.isUntouched("discard", before)
	c.host.changed = newHostChanges()
	c.same("discarded", c.seen(contestParts), c.onHost(contestParts), nil)
	if listed := c.changes(); len(listed) > 0 {
		c.t.Errorf("discarded, and still listed: %q", listed)
	}
}

// leftOut are the paths that a command names as left out or held back.
type leftOut struct {
	paths map[string]bool
	more  bool // there are others
}

var leftOutLine = regexp.MustCompile(`(?m)^(?:left out|held back): (?:(\d+ more)$|("(?:[^"\\]|\\.)*"|.*?): )`)

func leftOutBy(tree, stderr string) *leftOut {
	l := &leftOut{paths: map[string]bool{}}
	for _, match := range leftOutLine.FindAllStringSubmatch(stderr, -1) {
		if match[1] != "" {
			l.more = true
			continue
		}
		name, err := strconv.Unquote(match[2])
		if err != nil {
			name = match[2]
		}
		l.paths[strings.TrimPrefix(name, tree+"/")] = true
	}
	return l
}

func (l *leftOut) concerns(path string) bool { return l != nil && isOrBelow(path, l.paths) }
