package apply

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A box is a tree and an overlay of it, in which something can be done.
type box struct {
	t                   testing.TB
	tree, upper, merged string
	since               time.Time
	gone                *bool // set when merged has been unmounted
}

// newBox makes one whose tree a script fills. On an old file system nothing is
// as young as the sandbox is.
func newBox(t testing.TB, script string) *box {
	t.Helper()
	testhost.PrivateMounts(t)
	dir, err := os.MkdirTemp("", "apply-") // of a name that can be a mount option
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, tree: filepath.Join(dir, "tree"), upper: filepath.Join(dir, "upper"), merged: filepath.Join(dir, "merged")}
	for _, d := range []string{b.tree, b.upper, b.merged, filepath.Join(dir, "work")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.host(script)
	b.mount()
	return b
}

func (b *box) mount() { b.t.Helper(); b.mountOver(b.tree) }

func (b *box) mountOver(lower string) {
	b.t.Helper()
	options := "redirect_dir=nofollow,metacopy=off,index=off,lowerdir=" + lower + ",upperdir=" + b.upper + ",workdir=" + filepath.Join(filepath.Dir(b.upper), "work")
	b.since = coarse(b.t)
	if err := unix.Mount("overlay", b.merged, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		b.t.Fatalf("mount %s: %v", options, err)
	}
	gone := new(bool)
	b.gone = gone
	b.t.Cleanup(func() {
		if *gone {
			return
		}
		if err := unix.Unmount(b.merged, unix.MNT_DETACH); err != nil {
			b.t.Error(err)
		}
	})
}

// coarse waits for a moment that files of before are not stamped with, and that
// all later ones are stamped after.
func coarse(t testing.TB) time.Time {
	t.Helper()
	now := func() time.Time {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
			t.Fatal(err)
		}
		return time.Unix(ts.Sec, ts.Nsec)
	}
	start := now()
	for now().Sub(start) < 25*time.Millisecond {
		time.Sleep(time.Millisecond)
	}
	since := now()
	for now().Equal(since) {
		time.Sleep(time.Millisecond)
	}
	return since
}

// host runs a script in the tree.
func (b *box) host(script string) { b.t.Helper(); sh(b.t, b.tree, script) }

// run runs a script in the overlay.
func (b *box) run(script string) { b.t.Helper(); sh(b.t, b.merged, script) }

func sh(t testing.TB, dir, script string) {
	t.Helper()
	cmd := exec.Command("/bin/bash", "-e", "-u", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func openDir(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func (b *box) stack() *layer.Stack {
	b.t.Helper()
	return &layer.Stack{Layers: []layer.Layer{{Dir: openDir(b.t, b.upper)}}, Base: openDir(b.t, b.tree)}
}

func (b *box) plan(o Options) *Plan {
	b.t.Helper()
	p, err := b.tryPlan(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

func (b *box) tryPlan(o Options) (*Plan, error) {
	if o.Since.IsZero() {
		o.Since = b.since
	}
	return New(b.stack(), openDir(b.t, b.tree), o)
}

// apply applies, and holds that nothing is left of how.
func (b *box) apply(o Options) Report {
	b.t.Helper()
	return b.commit(b.plan(o))
}

func (b *box) commit(p *Plan) Report {
	b.t.Helper()
	report, err := p.Commit(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		b.t.Fatal(err)
	}
	b.clean()
	return report
}

// refused applies in vain, and returns why.
func (b *box) refused(o Options) error {
	b.t.Helper()
	err := b.applyWhole(o)
	if err == nil {
		b.t.Fatal("was applied")
	}
	return err
}

// applyWhole applies. It checks that a refused part has changed nothing.
func (b *box) applyWhole(o Options) error {
	b.t.Helper()
	before := describeTree(b.t, b.tree)
	p, err := b.tryPlan(o)
	if err == nil {
		_, err = p.Commit(context.Background())
		if err := p.Close(); err != nil {
			b.t.Error(err)
		}
	}
	if err != nil {
		b.wantSame(before, describeTree(b.t, b.tree))
	}
	b.clean()
	return err
}

func (b *box) conflict(path string, o Options) {
	b.t.Helper()
	err := b.refused(o)
	var conflict *ConflictError
	if !errors.As(err, &conflict) {
		b.t.Fatalf("no conflict but %v", err)
	}
	if conflict.Conflicts[0].Path != path {
		b.t.Errorf("conflict about %q (%v), not %q", conflict.Conflicts[0].Path, err, path)
	}
}

func (b *box) clean() {
	b.t.Helper()
	left, err := filepath.Glob(filepath.Join(b.tree, reservedPrefix+"*"))
	if err != nil || len(left) > 0 {
		b.t.Errorf("left in the tree: %q %v", left, err)
	}
}

// asMerged holds that the tree is what the overlay shows.
func (b *box) asMerged() {
	b.t.Helper()
	b.wantSame(describeTree(b.t, b.merged), describeTree(b.t, b.tree))
}

func (b *box) wantSame(want, got []string) {
	b.t.Helper()
	for _, line := range want {
		if !slices.Contains(got, line) {
			b.t.Errorf("missing: %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			b.t.Errorf("unwanted: %s", line)
		}
	}
}

// describeTree describes all that is in a tree but when directories were changed, which
// the making of what is in them does.
func describeTree(t testing.TB, dir string) []string {
	t.Helper()
	names := map[uint64]string{}
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if rel == "." {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%q %o %d:%d", rel, st.Mode, st.Uid, st.Gid)
		if d.IsDir() {
			all = append(all, line+xattrLine(t, path))
			return nil
		}
		if st.Nlink > 1 {
			if first, ok := names[st.Ino]; ok {
				line += fmt.Sprintf(" is %q", first)
			} else {
				names[st.Ino] = rel
			}
		}
		line += fmt.Sprintf(" %d %d.%09d", st.Size, st.Mtim.Sec, st.Mtim.Nsec)
		switch d.Type() {
		case 0:
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", sha256.Sum256(content)) + xattrLine(t, path)
		case fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + to
		case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
			line += fmt.Sprintf(" rdev %x", st.Rdev)
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func xattrLine(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	xattrs, err := xattrsOf(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for name, value := range xattrs {
		lines = append(lines, fmt.Sprintf(" %s=%x", name, value))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
