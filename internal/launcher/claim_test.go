package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/idrange"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// newPooledLauncher is a launcher with n blanks for sandboxes of root in memory.
func newPooledLauncher(t *testing.T, n int) *Launcher {
	t.Helper()
	l := newTestLauncher(t)
	l.claimAnswer = testhost.Patience // a busy machine breaks no blank
	hour := spec.Duration(time.Hour)
	if err := l.StartPool(spec.PoolConfig{Min: n, Max: n, WarmUp: n, IdleTimeout: hour, MaxAge: hour, CheckEvery: hour}, "", "", func(error) {}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.StopPool()
		if t.Failed() {
			s, err := l.PoolStats(nil)
			t.Logf("pool: %+v, %v", s, err)
		}
	})
	awaitBlanks(t, l, n)
	return l
}

func poolOf(t *testing.T, l *Launcher) spec.PoolStats {
	t.Helper()
	s, err := l.PoolStats(nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func awaitBlanks(t *testing.T, l *Launcher, n int) {
	t.Helper()
	testhost.Eventually(t, "blanks", func() bool { return poolOf(t, l).Ready >= n })
}

// inMemory is a request that a blank of newPooledLauncher can serve.
func inMemory(name string, c spec.Config) protocol.Create {
	c.Storage = spec.StorageMemory
	return protocol.Create{Name: name, Config: c}
}

func claimed1(t *testing.T, l *Launcher, r protocol.Create) *Sandbox {
	t.Helper()
	awaitBlanks(t, l, 1)
	before := poolOf(t, l)
	sb, err := l.Create(t.Context(), r, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	if now := poolOf(t, l); now.Hits != before.Hits+1 {
		t.Errorf("no blank was claimed: %+v", now)
	}
	return sb
}

func TestAClaimedSandboxIsLikeAColdOne(t *testing.T) {
	l := newPooledLauncher(t, 1)
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "given"), []byte("given\n"), 0o644), os.Chown(dir, 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	c := spec.Config{
		Workspace: dir, Hostname: "other.example", Env: map[string]string{"COLOUR": "blue"}, Network: spec.NetworkNone, Sensitivity: spec.SensitivityInternal,
		// The disk is that of a blank, which has 1 GiB of memory.
		Limits: spec.Limits{Memory: 2 << 30, Disk: 768 << 20, CPUs: 0.5, Pids: 64, FileSize: 1 << 20, NoFile: 100},
	}
	sb := claimed1(t, l, inMemory("box", c))
	const line = `cat given; echo $COLOUR; uname -n; id -u; pwd; ulimit -n; echo made > mine
cat /etc/hostname /etc/hosts; stat -c '%A %u %g %s %h' /etc/hostname /etc/hosts; ls -A /etc
cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; df -k /tmp | tail -1 | tr -s ' ' | cut -d' ' -f2`
	r, got := sh(t, sb, line)
	if !r.OK() {
		t.Errorf("%+v %+v", r, got)
	}
	if made, err := os.ReadFile(filepath.Join(dir, "mine")); err != nil || string(made) != "made\n" {
		t.Errorf("%q, %v", made, err)
	}
	info, err := sb.Info()
	if err != nil || info.ID != "box" || info.State != spec.StateRunning || info.Reused {
		t.Errorf("%+v, %v", info, err)
	}
	cold := newTestLauncher(t)
	other := createUp(t, cold, "box", inMemory("", c).Config)
	if _, want := sh(t, other, line); want != got {
		t.Errorf("got %q, a cold sandbox has %q", got, want)
	}
	if otherInfo, err := other.Info(); err != nil || !reflect.DeepEqual(otherInfo.Config, info.Config) || !slices.Equal(otherInfo.Notes, info.Notes) || otherInfo.Limits != info.Limits {
		t.Errorf("got %+v, a cold sandbox has %+v, %v", info, otherInfo, err)
	}
	if pruned, err := l.Prune(t.Context()); err != nil || len(pruned) > 0 {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	if err := errors.Join(sb.Pause(t.Context()), sb.Resume(t.Context()), sb.Update(t.Context(), spec.Limits{Pids: 80})); err != nil {
		t.Error(err)
	}
	if list, err := l.List(t.Context(), nil); err != nil || len(list) != 1 || list[0].ID != "box" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	l.StopPool()
	checkNothingLeft(t, l)
}

// A blank gets binds and overlays, below directories of the sandbox's own in memory and in the store.
func TestABlankGetsBindsAndOverlays(t *testing.T) {
	l, cold := newPooledLauncher(t, 1), newTestLauncher(t)
	dir := t.TempDir() // below /tmp, which is an area of the sandbox
	for dir := dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tree, shown, other := filepath.Join(dir, "tree"), filepath.Join(dir, "shown"), filepath.Join(dir, "other")
	for _, d := range []string{tree, shown, other} {
		if err := errors.Join(os.Mkdir(d, 0o755), os.WriteFile(filepath.Join(d, "file"), []byte(filepath.Base(d)+"\n"), 0o644),
			os.Chown(d, 1000, 1000), os.Chown(filepath.Join(d, "file"), 1000, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	c := spec.Config{
		Overlays: []string{tree},
		Binds: []spec.Bind{
			{Source: shown, Target: "/mnt/a/b"}, {Source: filepath.Join(shown, "file"), Target: "/mnt/a/file"},
			{Source: other, Target: "/srv/w", Writable: true},
		},
	}
	const line = `pwd; cat file /mnt/a/b/file /mnt/a/file /srv/w/file; echo changed > file; echo new > made; cat file made
echo x > /mnt/a/b/x 2>/dev/null || echo read-only; echo written > /srv/w/written; stat -c '%n %F %a %u %g' . file /mnt /mnt/a /mnt/a/b /mnt/a/file /srv /srv/w
rm file; ls -A . ; touch /mnt/x 2>/dev/null || echo no; grep -c " $PWD " /proc/self/mounts`
	sb := claimed1(t, l, inMemory("box", c))
	r, got := sh(t, sb, line)
	if !r.OK() {
		t.Errorf("%+v %+v", r, got)
	}
	_, want := sh(t, createUp(t, cold, "box", inMemory("", c).Config), line)
	if got != want || !strings.Contains(got.stdout, "changed\nnew\n") {
		t.Errorf("got %q, a cold sandbox has %q", got, want)
	}
	if text, err := os.ReadFile(filepath.Join(tree, "file")); err != nil || string(text) != "tree\n" {
		t.Errorf("the host's file: %q, %v", text, err)
	}
	trees, err := sb.Layers(t.Context(), false)
	if err != nil || len(trees) != 1 || trees[0].Path != tree {
		t.Errorf("%+v, %v", trees, err)
	}
	for _, tree := range trees {
		tree.Close()
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	// Places in the host's trees, and places that the sandbox has, need a sandbox of their own.
	for _, target := range []string{"/usr/share/srt-test", "/tmp", "/workspace/x/../y"} {
		awaitBlanks(t, l, 1)
		before := poolOf(t, l)
		bind := func(l *Launcher) error {
			r := inMemory("bound", spec.Config{Binds: []spec.Bind{{Source: shown, Target: target}}})
			sb, err := l.Create(t.Context(), r, Sources{})
			if err == nil {
				err = sb.Close()
			}
			return err
		}
		err := bind(l)
		if want := bind(cold); fmt.Sprint(err) != fmt.Sprint(want) {
			t.Errorf("%s: %v, a cold sandbox has %v", target, err, want)
		}
		if now := poolOf(t, l); now.Hits != before.Hits || now.Stale != before.Stale || now.Ready != before.Ready {
			t.Errorf("%s: %v; %+v, before %+v", target, err, now, before)
		}
	}
	l.StopPool()
	checkNothingLeft(t, l)
}

// The ids of the user inside are part of the kind of a blank. The groups are not.
func TestABlankHasTheUserOfTheRequest(t *testing.T) {
	l, cold := newPooledLauncher(t, 1), newTestLauncher(t)
	const line = `id; stat -c '%n %A %u %g' ~ . /tmp /dev/shm; cat /etc/passwd /etc/group; env | sort; echo > ~/x; echo > x`
	for _, user := range []spec.User{{}, {UID: 7, GID: 8, Groups: []uint32{9}}} {
		c := inMemory("", spec.Config{User: &user}).Config
		r, want := sh(t, createUp(t, cold, "box", c), line)
		if !r.OK() {
			t.Errorf("%+v %+v", r, want)
		}
		if err := cold.Remove(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
		testhost.Eventually(t, "a claim", func() bool {
			before := poolOf(t, l).Hits
			sb, err := l.Create(t.Context(), inMemory("", c), Sources{})
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Close()
			if _, got := sh(t, sb, line); got != want {
				t.Errorf("%+v: got %q, a cold sandbox has %q", user, got, want)
			}
			return poolOf(t, l).Hits > before
		})
	}
}

// A blank serves once. The name of an earlier sandbox can be used again.
func TestEachBlankServesOnce(t *testing.T) {
	l := newPooledLauncher(t, 2)
	inits := map[int]bool{}
	for range 6 {
		sb := claimed1(t, l, inMemory("box", spec.Config{}))
		if _, out := sh(t, sb, "ls -A /tmp /workspace ~ /dev/shm; touch /tmp/mark ~/mark /workspace/mark /dev/shm/mark"); strings.Contains(out.stdout, "mark") {
			t.Errorf("files of an earlier sandbox: %q", out)
		}
		if init := sb.session.Init().Pid; inits[init] {
			t.Errorf("PID 1 %d again", init)
		} else {
			inits[init] = true
		}
		if err := sb.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A blank keeps its id for a request without a name.
func TestASandboxWithoutANameHasTheIDOfItsBlank(t *testing.T) {
	l := newPooledLauncher(t, 1)
	blank := directoriesOf(t, l)[0]
	sb := claimed1(t, l, inMemory("", spec.Config{}))
	if sb.ID() != blank {
		t.Errorf("the sandbox %s has taken the blank %s", sb.ID(), blank)
	}
	if _, out := sh(t, sb, "echo there"); out.stdout != "there\n" {
		t.Errorf("%+v", out)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	awaitBlanks(t, l, 1)
	missing, err := l.Create(t.Context(), inMemory("", spec.Config{Seccomp: "strict"}), Sources{})
	if err != nil {
		t.Fatal(err)
	}
	if _, out := sh(t, missing, "echo there"); out.stdout != "there\n" {
		t.Errorf("a sandbox without a blank: %+v", out)
	}
	if err := missing.Close(); err != nil {
		t.Fatal(err)
	}
}

// A sandbox that ends with its creator ends with it also if it was claimed.
func TestAClaimedSandboxIsTied(t *testing.T) {
	l := newPooledLauncher(t, 1)
	r := inMemory("", spec.Config{})
	r.Tied = true
	sb := claimed1(t, l, r)
	init := sb.session.Init()
	conn, err := sb.session.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil { // as at the end of this process
		t.Fatal(err)
	}
	eventually(t, "the end of PID 1", func() bool { return !init.Lives() })
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
}

// A record of a claimed sandbox has all of the request, as that of a cold one. A field of the request
// that a claim does not know is a miss.
func TestAClaimedRecordHasTheRequest(t *testing.T) {
	l, cold := newPooledLauncher(t, 1), newTestLauncher(t)
	r := inMemory("box", spec.Config{Ceilings: map[spec.Sensitivity]spec.Network{spec.SensitivitySecret: spec.NetworkNone}})
	r.Named, r.Upstream = []string{"192.0.2.1"}, &spec.Upstream{HTTP: "http://user:password@192.0.2.1:3128"}
	got := claimed1(t, l, r).session.Current()
	other, err := cold.Create(t.Context(), r, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	want := other.session.Current()
	for _, of := range []*record.Record{&got, &want} { // these differ in each two sandboxes
		if of.Init.Pid == 0 || of.IDBase == 0 || len(of.UIDMappings) == 0 || of.Created.IsZero() {
			t.Errorf("%+v", of)
		}
		of.Init, of.IDBase, of.UIDMappings, of.GIDMappings, of.Created = process.ID{}, 0, nil, nil, time.Time{}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	known := []string{"Name", "Reuse", "Config", "From", "Tied", "Path", "Home", "Named", "Upstream"}
	fields := reflect.TypeFor[protocol.Create]()
	for i := range fields.NumField() {
		if name := fields.Field(i).Name; !slices.Contains(known, name) {
			t.Errorf("decide whether a claim has %s of a request", name)
		}
	}
}

// brokenBlanks break PID 1 of a blank.
var brokenBlanks = map[string]func(t *testing.T, pid int){
	"ended":   func(t *testing.T, pid int) { strike(t, pid, unix.SIGKILL) },
	"stopped": func(t *testing.T, pid int) { strike(t, pid, unix.SIGSTOP) },
	"frozen": func(t *testing.T, pid int) {
		var at [2]string // in v1 and v2
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(groups)) {
			switch f := strings.SplitN(strings.TrimSpace(line), ":", 3); f[1] {
			case "freezer":
				at[0] = "/sys/fs/cgroup/freezer" + f[2]
			case "":
				at[1] = "/sys/fs/cgroup" + f[2]
			}
		}
		f, err := cgroups.OpenFreezer(at[0], at[1])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
	},
}

func strike(t *testing.T, pid int, signal unix.Signal) {
	t.Helper()
	if err := unix.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
}

// A blank whose PID 1 has ended or stands still is not claimed. The checks of the pool replace it.
func TestABrokenBlankIsNotClaimed(t *testing.T) {
	testhost.Long(t)
	for name, breaks := range brokenBlanks {
		t.Run(name, func(t *testing.T) {
			l := newPooledLauncher(t, 1)
			l.claimAnswer = claimAnswerTime
			for _, id := range directoriesOf(t, l) {
				breaks(t, initOfBlank(t, l, id))
			}
			sb, err := l.Create(t.Context(), inMemory("box", spec.Config{}), Sources{})
			if err != nil {
				t.Fatal(err)
			}
			if r, _ := sh(t, sb, "true"); !r.OK() {
				t.Errorf("%+v", r)
			}
			stale := poolOf(t, l).Stale
			if s := poolOf(t, l); stale < 1 || s.Hits+s.Misses["empty"]+s.Misses["stale"] != 1 { // the pool can have made others meanwhile
				t.Errorf("%+v", s)
			}
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
			awaitBlanks(t, l, 1)
			old := directoriesOf(t, l)
			breaks(t, initOfBlank(t, l, old[0]))
			c := poolOf(t, l).Config
			c.CheckEvery = spec.Duration(time.Second)
			if err := l.ResizePool(c); err != nil {
				t.Fatal(err)
			}
			testhost.Eventually(t, "another blank", func() bool {
				s := poolOf(t, l)
				now, err := l.parts.Directories()
				return err == nil && s.Stale > stale && s.Ready == 1 && !slices.Equal(now, old)
			})
			l.StopPool()
			l.tending.Wait()
			checkNothingLeft(t, l)
		})
	}
}

func directoriesOf(t *testing.T, l *Launcher) []string {
	t.Helper()
	ids, err := l.parts.Directories()
	if err != nil || len(ids) == 0 {
		t.Fatalf("%v, %v", ids, err)
	}
	return ids
}

// initOfBlank finds PID 1 of a blank by its cgroup.
func initOfBlank(t *testing.T, l *Launcher, id string) int {
	t.Helper()
	group, err := l.parts.Group(id)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	pids, err := group.Procs()
	if err != nil || len(pids) != 1 {
		t.Fatalf("%v, %v", pids, err)
	}
	return pids[0]
}

// Programs on PATH that are installed after a blank was made are shown to the next sandbox.
func TestABlankWithOldToolsIsNotClaimed(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "tool")
	bin := filepath.Join(prefix, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := prefix; dir != "/"; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil && st.Mode().Perm()&0o005 != 0o005 && dir != os.TempDir() {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := newTestLauncher(t)
	l.claimAnswer = testhost.Patience
	if err := l.StartPool(spec.PoolConfig{Min: 1, Max: 1, WarmUp: 1}, bin, "", func(error) {}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.StopPool)
	awaitBlanks(t, l, 1)
	for path, text := range map[string]string{"bin/python3": "#!/bin/sh\necho new\n", "lib/python3.99/os.py": ""} {
		path = filepath.Join(prefix, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	r := inMemory("box", spec.Config{})
	r.Path = bin
	sb, err := l.Create(t.Context(), r, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	if _, out := sh(t, sb, "python3"); out.stdout != "new\n" {
		t.Errorf("%q; notes %q", out, sb.session.Current().PathNotes)
	}
	if s := poolOf(t, l); s.Stale != 1 || s.Hits != 0 {
		t.Errorf("%+v", s)
	}
}

// An invalid workspace has the error of a sandbox without a pool, and nothing is left.
func TestAClaimWithABadWorkspace(t *testing.T) {
	l := newPooledLauncher(t, 1)
	missing := filepath.Join(t.TempDir(), "missing")
	request := inMemory("box", spec.Config{Workspace: missing})
	_, got := l.Create(t.Context(), request, Sources{})
	_, want := newTestLauncher(t).Create(t.Context(), request, Sources{})
	if got == nil || want == nil || got.Error() != want.Error() {
		t.Errorf("got %v, want %v", got, want)
	}
	l.StopPool()
	l.tending.Wait()
	checkNothingLeft(t, l)
}

// A client that has gone gets no sandbox, and its request finds no blank stale.
func TestAClaimOfAClientThatHasGone(t *testing.T) {
	l := newPooledLauncher(t, 3)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if sb, err := l.Create(gone, inMemory("box", spec.Config{}), Sources{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", sb, err)
	}
	if s := poolOf(t, l); s.Stale != 0 || s.Ready < 2 {
		t.Errorf("%+v", s)
	}
	l.StopPool()
	checkNothingLeft(t, l)
}

// Many claims at once: each has a sandbox of its own, from the pool or not.
func TestClaimsAtOnce(t *testing.T) {
	testhost.Concurrent(t)
	l := newPooledLauncher(t, 4)
	var all sync.WaitGroup
	var mu sync.Mutex
	inits := map[int]bool{}
	for range 12 {
		all.Go(func() {
			sb, err := l.Create(context.Background(), inMemory("", spec.Config{}), Sources{})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			inits[sb.session.Init().Pid] = true
			mu.Unlock()
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if s := poolOf(t, l); len(inits) != 12 || s.Hits < 4 || s.Hits+s.Misses["empty"] != 12 {
		t.Errorf("%d sandboxes, %+v", len(inits), s)
	}
	l.StopPool()
	checkNothingLeft(t, l)
}

// claimable are the fields of a configuration that a blank can get. Each other field has an
// example here, which is a miss by its name. A new field of the configuration has to be in one of
// the two lists.
func TestAFieldIsClaimableOrAMiss(t *testing.T) {
	claimable := []string{"workspace", "env", "cwd", "timeout", "grace", "network", "allow", "deny", "observe", "ask", "publish", "upstream_proxy", "sensitivity", "ceilings", "binds", "overlays", "hostname", "image"}
	misses := map[string]spec.Config{
		"rootfs": {Rootfs: "/srv"}, "writable": {Image: "app", Writable: true},
		"pid": {PID: spec.PIDHost}, "seccomp": {Seccomp: "/srv/profile.json"},
	}
	parts := []string{"storage", "limits", "user"} // of the template
	fields := reflect.TypeFor[spec.Config]()
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
		c, isMiss := misses[name]
		switch {
		case slices.Contains(claimable, name), slices.Contains(parts, name):
			continue
		case !isMiss:
			t.Errorf("%s is in no list", name)
			continue
		}
		c, err := part.Completed(c, spec.StorageMemory)
		if err != nil {
			t.Fatal(err)
		}
		if _, reason := templateOf(protocol.Create{Config: c}, Sources{}, part.ImageRoot{}); reason != name {
			t.Errorf("%s: the reason is %q", name, reason)
		}
	}
	for name, c := range map[string]spec.Config{
		"observe": {Network: spec.NetworkProxied, Observe: true}, "ask": {Network: spec.NetworkProxied, Ask: true},
		"limits of the network": {Network: spec.NetworkProxied, Limits: spec.Limits{NetworkQuota: 1 << 20, NetworkRequests: 7}},
		"a rate":                {Network: spec.NetworkFull, Limits: spec.Limits{NetworkRate: 1 << 20}},
	} {
		c, err := part.Completed(c, spec.StorageMemory)
		if err != nil {
			t.Fatal(err)
		}
		if _, reason := templateOf(protocol.Create{Config: c}, Sources{}, part.ImageRoot{}); reason != "" {
			t.Errorf("%s: no claim because of %s", name, reason)
		}
	}
	c, err := part.Completed(spec.Config{Limits: spec.Limits{Disk: 2 << 30, Memory: 4 << 30}}, spec.StorageMemory)
	if err != nil {
		t.Fatal(err)
	}
	if _, reason := templateOf(protocol.Create{Config: c}, Sources{}, part.ImageRoot{}); reason != "limits" {
		t.Errorf("a large disk in memory: %q", reason)
	}
	for reason, c := range map[string]spec.Config{
		"overlays": {Overlays: []string{"/"}},
		"binds":    {Workspace: "/srv", Binds: []spec.Bind{{Source: "/srv", Target: "/workspace/srv"}}},
	} {
		c, err := part.Completed(c, spec.StorageMemory)
		if err != nil {
			t.Fatal(err)
		}
		if _, got := templateOf(protocol.Create{Config: c}, Sources{}, part.ImageRoot{}); got != reason {
			t.Errorf("%s: the reason is %q", reason, got)
		}
	}
	if _, reason := templateOf(protocol.Create{Config: c, From: "snap"}, Sources{}, part.ImageRoot{}); reason != "snapshot" {
		t.Errorf("a fork: %q", reason)
	}
}

// The number of a rule bounds the blanks of its user. Without a number a user has a quarter of the pool.
func TestARuleBoundsBlanks(t *testing.T) {
	l := newPooledLauncher(t, 8)
	none, three, many := 0, 3, 100
	for want, from := range map[int]Sources{2: {UID: 1001}, 0: {UID: 1001, Blanks: &none}, 3: {UID: 1001, Blanks: &three}} {
		if got := l.blanks.share(from); got != want {
			t.Errorf("%d blanks, want %d", got, want)
		}
	}
	for _, from := range []Sources{{}, {Blanks: &none}, {UID: 1001, Blanks: &many}} {
		if got := l.blanks.share(from); got != 8 {
			t.Errorf("%+v: %d blanks, want all", from, got)
		}
	}
	from := Sources{UID: 1001, GIDs: []uint32{1001}, Blanks: &none}
	sb, err := l.Create(t.Context(), inMemory("box", spec.Config{}), from)
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.PoolStats(&from.UID)
	if err != nil || s.Misses["rule"] != 1 || s.Total != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
}

// On a host that has no room for another sandbox, a request ends a blank, and no blank is made.
func TestBlanksGiveWayToSandboxes(t *testing.T) {
	testhost.Long(t)
	l := newPooledLauncher(t, 2)
	boots, err := filepath.Glob(filepath.Join(l.Data, "ids", "*"))
	if err != nil || len(boots) != 1 {
		t.Fatal(boots, err)
	}
	for n := range 4094 {
		if err := os.Symlink("{}", filepath.Join(boots[0], strconv.Itoa(n))); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	none := 0
	from := Sources{UID: 1001, GIDs: []uint32{1001}, Blanks: &none}
	for ready := range 2 {
		sb, err := l.Create(t.Context(), inMemory("", spec.Config{}), from)
		if err != nil {
			t.Fatal(err)
		}
		defer sb.Close()
		if s := poolOf(t, l); s.Ready != 1-ready {
			t.Errorf("%+v", s)
		}
	}
	if _, err := l.Create(t.Context(), inMemory("", spec.Config{}), from); !errors.Is(err, idrange.ErrNone) {
		t.Errorf("one more: %v", err)
	}
	if err := (&blanks{launcher: l}).roomForBlank(); err == nil || !strings.Contains(err.Error(), "0 more sandboxes") {
		t.Errorf("room for a blank: %v", err)
	}
	testhost.Eventually(t, "a look of the pool", func() bool { s := poolOf(t, l); return s.LastError != "" && s.Ready == 0 })
}

// The launcher keeps of a blank what a claim needs, and not the content of the blank's files.
func TestABlankTakesLittleOfTheLauncher(t *testing.T) {
	l := newPooledLauncher(t, 1)
	live := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	hour := spec.Duration(time.Hour)
	if err := l.ResizePool(spec.PoolConfig{Min: 9, Max: 9, IdleTimeout: hour, MaxAge: hour, CheckEvery: hour}); err != nil {
		t.Fatal(err)
	}
	awaitBlanks(t, l, 9)
	each := (live() - before) / 8
	t.Logf("%d kB for each blank", each>>10)
	if each > 96<<10 {
		t.Errorf("a blank takes %d kB of the launcher", each>>10)
	}
}
