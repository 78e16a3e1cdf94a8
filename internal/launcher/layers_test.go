package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// overlaid is a directory of user 4242 with a few files.
func overlaid(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"kept": "kept", "gone": "gone", "dir/file": "file"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, 4242, 4243))
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestLayersAreWhatWasWritten(t *testing.T) {
	l := newTestLauncher(t)
	one, two := overlaid(t), overlaid(t)
	begin := time.Now()
	sb := createUp(t, l, "", spec.Config{Overlays: []string{two, one}})
	if _, out := sh(t, sb, "cd "+one+" && echo more >new && rm gone && rm -r dir && mkdir -p dir/sub"); out.stderr != "" {
		t.Fatal(out.stderr)
	}
	trees, err := layersOf(t, sb, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, tree := range trees {
			tree.Close()
		}
	})
	if len(trees) != 2 || trees[0].Path > trees[1].Path {
		t.Fatalf("got %+v", trees)
	}
	i := slices.IndexFunc(trees, func(t layer.Overlay) bool { return t.Path == one })
	tree, other := trees[i], trees[1-i]
	if len(tree.Layers) != 1 || tree.Owner != (layer.Owner{UID: 4242, GID: 4243}) || tree.OnDisk || tree.Stamps != nil ||
		tree.Since.Before(begin.Add(-time.Second)) || tree.Since.After(time.Now()) {
		t.Errorf("got %+v", tree)
	}
	dir := tree.Layers[0].Dir
	at := func(name string) string { return filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), name) }
	if text, err := os.ReadFile(at("new")); string(text) != "more\n" {
		t.Errorf("a new file: %q, %v", text, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(at("new"), &st); err != nil || st.Uid != tree.User.UID || st.Gid != tree.User.GID || tree.User != tree.Owner {
		t.Errorf("its owner: %d:%d, %v; %+v", st.Uid, st.Gid, err, tree)
	}
	if err := unix.Stat(at("gone"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Errorf("what is gone: %+v, %v", st, err)
	}
	if want := (map[string]layer.Mark{"dir": {Opaque: true}}); !maps.Equal(tree.Layers[0].Marks, want) {
		t.Errorf("marks: %+v, want %+v", tree.Layers[0].Marks, want)
	}
	if err := os.WriteFile(at("mine"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("written to: %v", err)
	}
	if names, err := os.ReadDir(filepath.Join("/proc/self/fd", strconv.Itoa(int(other.Layers[0].Dir.Fd())))); err != nil || len(names) > 0 {
		t.Errorf("the other one's layer: %v, %v", names, err)
	}
	if text, err := os.ReadFile(filepath.Join(one, "gone")); string(text) != "gone" {
		t.Errorf("on the host: %q, %v", text, err)
	}
}

func TestAppliedIsRemembered(t *testing.T) {
	l := newTestLauncher(t)
	dir := overlaid(t)
	sb := createUp(t, l, "", spec.Config{Overlays: []string{dir}})
	now := time.Now().UnixNano()
	stamps := map[string]layer.Stamp{"a": {CTime: now + 1, Source: now - 1}, "b\xff\n": {CTime: now + 2, Inode: 1 << 60}, "c": {CTime: now, Inode: 7, Touched: true}}
	for _, some := range []map[string]layer.Stamp{
		{"a": {CTime: now + 7}, "b\xff\n": stamps["b\xff\n"], "c": stamps["c"], "before the layers": {CTime: 1}, "gone": {CTime: now}},
		{"a": stamps["a"], "gone": {}},
	} {
		if err := sb.Applied(t.Context(), dir, protocol.StampList(some)); err != nil {
			t.Fatal(err)
		}
	}
	again, err := l.Open(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	trees, err := layersOf(t, again, false)
	if err != nil {
		t.Fatal(err)
	}
	defer trees[0].Close()
	if !maps.Equal(trees[0].Stamps, stamps) || trees[0].Layers[0].Marks != nil {
		t.Errorf("got %+v", trees)
	}
	var config *fault.ConfigError
	if err := sb.Applied(t.Context(), "/elsewhere", protocol.StampList(stamps)); !errors.As(err, &config) || !strings.Contains(err.Error(), "/elsewhere") {
		t.Errorf("another tree: %v", err)
	}
}

func TestStampsAreBoundedForASandbox(t *testing.T) {
	l := newTestLauncher(t)
	one, other := overlaid(t), overlaid(t)
	sb := createUp(t, l, "", spec.Config{Overlays: []string{one, other}})
	stamps := map[string]layer.Stamp{}
	for i := range maxStamps / maxStampPath / 2 {
		path := fmt.Sprintf("%0*d", maxStampPath-10, i)
		stamps[path] = layer.Stamp{CTime: time.Now().Add(time.Hour).UnixNano()}
	}
	if err := sb.Applied(t.Context(), one, protocol.StampList(stamps)); err != nil {
		t.Fatal(err)
	}
	if err := sb.Applied(t.Context(), one, protocol.StampList(stamps)); err != nil {
		t.Errorf("the same once more: %v", err)
	}
	var config *fault.ConfigError
	if err := sb.Applied(t.Context(), other, protocol.StampList(stamps)); !errors.As(err, &config) || !strings.Contains(err.Error(), other) {
		t.Errorf("as much of another tree: %v", err)
	}
}

// No path of a client breaks the list for those after it.
func TestStampsOfPathsThatAreNone(t *testing.T) {
	l := newTestLauncher(t)
	dir := overlaid(t)
	sb := createUp(t, l, "", spec.Config{Overlays: []string{dir}})
	for name, path := range map[string]string{"NUL": "a\x001\x00b", "long": strings.Repeat("x", maxStampPath+1)} {
		stamps := map[string]layer.Stamp{path: {CTime: time.Now().Add(time.Hour).UnixNano()}}
		var config *fault.ConfigError
		if err := sb.Applied(t.Context(), dir, protocol.StampList(stamps)); !errors.As(err, &config) {
			t.Errorf("%s: %v", name, err)
		}
	}
	trees, err := layersOf(t, sb, false)
	if err != nil || trees[0].Stamps != nil {
		t.Errorf("%+v, %v", trees, err)
	}
	closeTrees(trees)
}

// The list of a file and the list of a request are merged in the order of their paths.
func TestStampsAreMerged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "applied", "0")
	want := map[string]layer.Stamp{}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 50 {
		var added []protocol.Stamp
		for range random.IntN(20) {
			s := protocol.Stamp{Path: fmt.Append(nil, random.IntN(30)), Time: random.Int64N(3) * 10, Inode: uint64(round)}
			if random.IntN(4) == 0 {
				s.Time, s.Inode = 0, 0
			}
			added = append(added, s)
		}
		slices.SortStableFunc(added, protocol.Stamp.ComparePaths)
		last := map[string]layer.Stamp{}
		for _, s := range added {
			last[string(s.Path)] = s.Plain()
		}
		for path, s := range last {
			switch {
			case s == layer.Stamp{}:
				delete(want, path)
			case s.CTime > 10:
				want[path] = s
			}
		}
		m := stampMerge{added: added, since: 10, room: 1 << 20}
		if err := m.write(file); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := protocol.DecodeStamps(b); err != nil || !maps.Equal(got, want) {
			t.Fatalf("round %d: %v, %v; want %v", round, got, err, want)
		}
	}
	m := stampMerge{added: []protocol.Stamp{{Path: []byte("x"), Time: 20}}, room: 3}
	if err := m.write(file); !errors.Is(err, errStampsFull) {
		t.Errorf("more than there is room for: %v", err)
	}
	if got, err := os.ReadDir(filepath.Dir(file)); err != nil || len(got) != 1 {
		t.Errorf("there are %v, %v", got, err)
	}
}

func TestMoreDiskThanMemoryIsRefused(t *testing.T) {
	l := newTestLauncher(t)
	_, err := l.Create(t.Context(), protocol.Create{Config: spec.Config{Storage: spec.StorageMemory, Limits: spec.Limits{Disk: 2 << 30}}}, Sources{})
	var field *spec.FieldError
	if !errors.As(err, &field) || field.Field != "limits.disk" || !strings.Contains(err.Error(), "--memory") {
		t.Errorf("got %v", err)
	}
}
