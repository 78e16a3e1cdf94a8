package integration

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/layertest"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// scribe does random things to a directory, and says what the files hold.
//
//go:embed testdata/scribe.py
var scribe string

// The disk of the data directory is full at random moments. An apply or a save that
// succeeds has all that the sandbox wrote.
func TestNoChangeIsLostOnAFullDisk(t *testing.T) {
	testhost.Long(t)
	counts := map[string]int{}
	forSeeds(t, func(t *testing.T, ground string, seed int) {
		c := newFullContest(t, ground, seed, counts)
		for step := range 3 + c.IntN(4) {
			c.begin()
			done := c.meanwhile()
			c.writes(seed + 1000*step)
			for range max(c.IntN(4)-2, 0) {
				c.host.edit()
			}
			c.looks()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			c.hasRoom()
		}
		c.end()
		c.hasRoom()
	})
	t.Logf("%v", counts)
}

// A fullContest is a contest with a small disk below the data directory.
type fullContest struct {
	*contest
	disk    string
	isUp    bool
	content map[string]string
	unknown map[string]bool
}

// smallDisks are the sizes, in MiB, of disks that hold an image of 100 MiB and little more.
var smallDisks = map[string]int64{"ext4": 160, "xfs": 320, "btrfs": 220, "tmpfs": 160}

func newFullContest(t *testing.T, ground string, seed int, counts map[string]int) *fullContest {
	t.Helper()
	box := newSandboxes(t)
	fsType := hostFileSystems[seed%len(hostFileSystems)]
	c := &fullContest{disk: filepath.Join(t.TempDir(), "disk")}
	newFileSystem(t, fsType, c.disk, smallDisks[fsType])
	tree, outside := filepath.Join(ground, "tree"), filepath.Join(ground, "outside")
	r := rand.New(rand.NewPCG(uint64(seed), 2))
	c.contest = &contest{
		wild: &wild{sandboxes: box, t: t, dirs: []string{tree}}, Rand: r, tree: tree, counts: counts, text: true, single: true,
		host:  &hostEditor{Rand: r, t: t, dir: tree, outside: outside},
		flags: []string{"--data", filepath.Join(c.disk, "data")},
	}
	for i, dir := range []string{tree, outside} {
		if err := os.MkdirAll(filepath.Join(dir, "src/d"), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := run(t, exec.Command(hostTool(t, "python3"), "-c", scribe, dir, fmt.Sprint(2*seed+i), "30")); got.code != 0 {
			t.Fatalf("%s", answered(got))
		}
		own(t, dir, wildOwner)
	}
	c.host.makeTwin()
	t.Cleanup(func() {
		if c.isUp { // after a failure
			c.box("down", "box")
		}
	})
	return c
}

// begin makes a sandbox if there is none. Where there is no room for one there is a
// reason, and nothing else.
func (c *fullContest) begin() {
	c.t.Helper()
	if c.isUp {
		return
	}
	up := func() result { return c.box("up", "--storage", "disk", "--disk", "100m", "--overlay", c.tree, "box") }
	if got := up(); got.code != 0 {
		if !strings.Contains(got.stderr, "no space left on device") {
			c.t.Errorf("up: %s", answered(got))
		}
		c.counts["no room for up"]++
		if err := emptyDisk(c.disk); err != nil {
			c.t.Fatal(err)
		}
		if got := up(); got.code != 0 {
			c.t.Fatalf("up: %s", answered(got))
		}
	}
	c.isUp, c.unknown = true, map[string]bool{}
	c.host.changed = newHostChanges()
	c.content = layertest.Tree(c.t, c.tree, 0)
}

// end removes the sandbox. The disk may be full.
func (c *fullContest) end() {
	c.t.Helper()
	if !c.isUp {
		return
	}
	if got := c.box("down", "box"); got.code != 0 {
		c.t.Fatalf("down: %s", answered(got))
	}
	c.isUp = false
}

// hasRoom holds that without a sandbox there is room on the disk again.
func (c *fullContest) hasRoom() {
	c.t.Helper()
	if c.isUp {
		return
	}
	if err := emptyDisk(c.disk); err != nil {
		c.t.Fatal(err)
	}
	used := func() int64 {
		unix.Sync()
		var st unix.Statfs_t
		if err := unix.Statfs(c.disk, &st); err != nil {
			c.t.Fatal(err)
		}
		return int64(st.Blocks-st.Bfree) * st.Bsize
	}
	eventually(c.t, "the room is free again", func() bool { return used() < 24<<20 })
}

// meanwhile fills or empties the disk now or soon, or leaves it alone.
func (c *fullContest) meanwhile() <-chan error {
	done, wait, change := make(chan error, 1), time.Duration(0), emptyDisk
	switch c.IntN(4) {
	case 0:
		change = func(string) error { return nil }
	case 1, 2:
		change = fillDisk
	}
	if c.IntN(2) == 0 {
		wait = time.Duration(c.IntN(400)) * time.Millisecond
	}
	if wait == 0 {
		done <- change(c.disk)
		return done
	}
	go func() {
		time.Sleep(wait)
		done <- change(c.disk)
	}()
	return done
}

// fillDisk takes the room that is left.
func fillDisk(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "filling"), unix.O_WRONLY|unix.O_CREAT|unix.O_SYNC, 0o600)
	if errors.Is(err, unix.ENOSPC) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	end := st.Size()
	for size := int64(64 << 20); size >= 4<<10; size /= 2 {
		for err = nil; err == nil; {
			if err = unix.Fallocate(int(f.Fd()), 0, end, size); err == nil {
				end += size
			}
		}
		if !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("fill: %w", err)
		}
	}
	return nil
}

// emptyDisk frees the room again. On btrfs there is room after a sync.
func emptyDisk(dir string) error {
	err := os.Remove(filepath.Join(dir, "filling"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	top, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer top.Close()
	return unix.Syncfs(int(top.Fd()))
}

// writes has the sandbox write, and notes what it wrote.
func (c *fullContest) writes(seed int) {
	c.t.Helper()
	got := c.box("exec", "--timeout", "60s", "box", "python3", "-c", scribe, c.tree, fmt.Sprint(seed), "30")
	lines := 0
	for line := range strings.Lines(got.stdout) {
		var e scribeEntry
		if json.Unmarshal([]byte(line), &e) != nil {
			break // the sandbox has died here
		}
		c.note(&e)
		lines++
	}
	if lines == 0 && got.code == 0 {
		c.counts["wrote nothing"]++
	}
	if c.IntN(3) == 0 {
		dropCaches(c.t)
	}
}

// A scribeEntry is one line of the scribe.
type scribeEntry struct {
	What, Path, Old, Token string
	Size                   int
}

func (c *fullContest) note(e *scribeEntry) {
	switch e.What {
	case "unknown":
		c.unknown[e.Path] = true
		return
	case "file":
		data := bytes.Repeat([]byte(e.Token), e.Size/len(e.Token)+1)[:e.Size]
		c.content[e.Path] = layertest.DescribeFile(data)
	case "gone":
		c.forget(e.Path)
	case "moved":
		text, known := c.content[e.Old]
		c.forget(e.Old)
		delete(c.unknown, e.Old)
		if !known || c.host.changed.concerns(e.Old) {
			return // what was moved is unknown
		}
		c.content[e.Path] = text
	}
	delete(c.unknown, e.Path)
}

// forget forgets a path and all below it.
func (c *fullContest) forget(path string) {
	for name := range c.content {
		if name == path || strings.HasPrefix(name, path+"/") {
			delete(c.content, name)
		}
	}
	for name := range c.unknown {
		if strings.HasPrefix(name, path+"/") {
			delete(c.unknown, name)
		}
	}
}

// looks saves or applies. Success means that the result is right.
func (c *fullContest) looks() {
	c.t.Helper()
	before := entriesOf(c.t, c.tree)
	file := filepath.Join(c.t.TempDir(), "changes")
	switch c.IntN(5) {
	case 0, 1:
		if file += ".tar"; c.saved(file, before) {
			c.checkArchive(file)
		}
	case 2:
		if file += ".patch"; c.saved(file, before) {
			c.checkPatch(file)
		}
	default:
		c.applied(before)
	}
}

// refused counts an error, and ends the sandbox if the error is about lost writes.
func (c *fullContest) refused(what string, got result, before map[string]treeEntry) {
	c.t.Helper()
	c.isUntouched(what, before)
	switch {
	case strings.Contains(got.stderr, "files that cannot be trusted"):
		c.counts[what+": untrusted"]++
		c.end()
	case conflictText.MatchString(got.stderr):
		c.counts[what+": conflict"]++
	default:
		c.t.Errorf("%s: %s", what, answered(got))
	}
}

func (c *fullContest) saved(file string, before map[string]treeEntry) bool {
	c.t.Helper()
	got := c.box("save", "box", file)
	if got.code == 0 {
		c.counts["saved"]++
		c.isUntouched("save", before)
		return true
	}
	if exists(file) {
		c.t.Errorf("save: there is a file, and %s", answered(got))
	}
	c.refused("save", got, before)
	return false
}

func (c *fullContest) checkArchive(file string) {
	c.t.Helper()
	archive, err := os.Open(file)
	if err != nil {
		c.t.Fatal(err)
	}
	defer archive.Close()
	got, err := layertest.Extracted(layertest.Tree(c.t, c.tree, 0), archive, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	c.same("saved", got, c.content, c.unknowns())
}

func (c *fullContest) checkPatch(file string) {
	c.t.Helper()
	if st, err := os.Stat(file); err != nil || st.Size() == 0 {
		return
	}
	dir := c.copied() + c.tree
	cmd := exec.Command("git", "apply", "--whitespace=nowarn", file)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		if len(c.host.changed.touched)+len(c.host.changed.marked) == 0 {
			c.t.Errorf("git apply: %v: %s", err, out)
		}
		return
	}
	c.same("patched", layertest.Tree(c.t, dir, 0), c.content, c.unknowns())
}

func (c *fullContest) applied(before map[string]treeEntry) {
	c.t.Helper()
	got := c.box("apply", "--yes", "box")
	if got.code != 0 {
		c.refused("apply", got, before)
		return
	}
	c.counts["applied"]++
	c.keepsAll(before, got)
	c.leavesNothingInTree("apply")
	c.same("applied", layertest.Tree(c.t, c.tree, 0), c.content, c.unknowns())
}

// unknowns are the paths that the sandbox began to change, and did not say how.
func (c *fullContest) unknowns() *leftOut { return &leftOut{paths: c.unknown} }
