package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/filewatch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// changedBy runs a shell line and returns which files it changed.
func changedBy(t *testing.T, sb *Sandbox, script string) *spec.Files {
	t.Helper()
	p, printed := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", script}})
	r, err := p.Wait(t.Context())
	if err != nil || r.ExitCode != 0 || r.Files == nil {
		t.Fatalf("%s: %+v, %v: %s", script, r, err, printed().stderr)
	}
	return r.Files
}

// changeText is files as one: + created, ~ modified, - deleted.
func changeText(f *spec.Files) string {
	var all []string
	for sign, paths := range map[string][]string{"+": f.Created, "~": f.Modified, "-": f.Deleted} {
		if !slices.IsSorted(paths) {
			return fmt.Sprintf("not in order: %q", paths)
		}
		for _, p := range paths {
			all = append(all, sign+p)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestFilesOfAnExecAreTold(t *testing.T) {
	l := newTestLauncher(t)
	for _, storage := range []spec.Storage{spec.StorageMemory, spec.StorageDisk} {
		t.Run(string(storage), func(t *testing.T) {
			filesOfAnExecAreTold(t, createUp(t, l, "", spec.Config{Storage: storage}))
		})
	}
}

func filesOfAnExecAreTold(t *testing.T, sb *Sandbox) {
	for _, step := range []struct{ script, want string }{
		{"true", ""},
		{"cat /etc/hostname; ls / ~ >/dev/null", ""},
		{"echo 1 > a; mkdir -p ~/x/y; echo 1 > ~/x/y/z; echo 1 > /tmp/t",
			"+/home/sandbox/x +/home/sandbox/x/y +/home/sandbox/x/y/z +/tmp/t +/workspace/a"},
		{"echo 2 >> a; rm /tmp/t; mv ~/x/y ~/y; echo 1 > /dev/shm/not-told; echo 1 > /tmp/brief; rm /tmp/brief",
			"+/home/sandbox/y -/home/sandbox/x/y -/tmp/t ~/workspace/a"},
		{"rm -r ~/y; (sleep 0.05; echo 3 > late) & wait; ln -s / root", "+/workspace/late +/workspace/root -/home/sandbox/y -/home/sandbox/y/z"},
		{"perl -e 'truncate q(late), 0'", ""}, // which nobody has opened: the kernel tells of no write
	} {
		if got := changeText(changedBy(t, sb, step.script)); got != step.want {
			t.Errorf("%s\ngot  %s\nwant %s", step.script, got, step.want)
		}
	}
}

// A command that is killed has changed what it has.
func TestFilesOfAKilledExecAreTold(t *testing.T) {
	l := newTestLauncher(t)
	for timeout := 500 * time.Millisecond; ; timeout *= 4 { // which is too short for a slow host to get far
		sb := createUp(t, l, "", spec.Config{})
		p, read := startPiped(t, sb, spec.Command{
			Args: []string{"sh", "-c", "exec 3> open; echo 1 >&3; mkfifo ready; echo on; sleep 1000"}, Timeout: spec.Duration(timeout),
		})
		r, err := p.Wait(t.Context())
		on := read().stdout == "on\n"
		if err != nil || r.Status != spec.StatusTimedOut || r.Files == nil || !on && timeout > time.Minute ||
			on && changeText(r.Files) != "+/workspace/open +/workspace/ready" {
			t.Fatalf("got %+v, %v", r, err)
		}
		if on {
			return
		}
	}
}

// Of what is bound from the host only what was written is told, and that this is so.
func TestFilesOfABindAreToldInPart(t *testing.T) {
	l := newTestLauncher(t)
	workspace, other, readOnly := ownedDir(t, 1000, "x"), ownedDir(t, 1000, "x"), ownedDir(t, 1000, "x")
	for _, name := range []string{"old", "gone"} {
		if err := os.WriteFile(filepath.Join(workspace, name), []byte("1"), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(workspace, name), 1000, 1000); err != nil {
			t.Fatal(err)
		}
	}
	if err := record.AwaitTick(t.Context(), record.Now()); err != nil { // what is older has another time
		t.Fatal(err)
	}
	sb := createUp(t, l, "", spec.Config{Workspace: workspace, Binds: []spec.Bind{
		{Source: other, Target: "/data", Writable: true}, {Source: readOnly, Target: "/ro"},
	}})
	files := changedBy(t, sb, "mkdir d; echo 1 > d/new; echo 2 >> old; rm gone; echo 1 > x; mv x y; echo 1 > /data/z; echo 1 > /tmp/t; cat old")
	if got, want := changeText(files), "+/data/z +/tmp/t +/workspace/d/new +/workspace/y ~/workspace/old"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if want := []string{"/workspace", "/data"}; !slices.Equal(files.Partial, want) {
		t.Errorf("partial: %q", files.Partial)
	}
	if err := os.WriteFile(filepath.Join(workspace, "by the host"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := changeText(changedBy(t, sb, "true")); got != "" {
		t.Errorf("an exec that did nothing: %s", got)
	}
}

func TestFilesOfAnOverlayAreTold(t *testing.T) {
	l := newTestLauncher(t)
	tree := ownedDir(t, 1000, "x")
	for _, name := range []string{"d", "e", "e/sub"} {
		if err := os.Mkdir(filepath.Join(tree, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(tree, name), 1000, 1000); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b", "c", "d/x", "e/y", "e/sub/z"} {
		if err := os.WriteFile(filepath.Join(tree, name), []byte("1"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(tree, name), 1000, 1000); err != nil {
			t.Fatal(err)
		}
	}
	sb := createUp(t, l, "", spec.Config{Overlays: []string{tree}, Cwd: tree})
	onLayer, partial := " ~T/a", []string(nil)
	if !filewatch.OverlayWritesTold() {
		onLayer, partial = "", []string{tree}
	}
	for _, step := range []struct{ script, want string }{
		{"echo 1 > n; echo 2 >> a; rm b; chmod 600 c; mkdir nd", "+T/n +T/nd -T/b ~T/a ~T/c"},
		{"echo 3 >> a; rm n", "-T/n" + onLayer}, // it is there already
		{"echo 1 > e/sub/new", "+T/e/sub/new"},
		{"rm -r d; mkdir d; echo 1 > d/own", "+T/d/own ~T/d"},
		{"rm -r e", "-T/e"},
		{"mv c c2; echo 1 > t; mv t a", "+T/c2 -T/c ~T/a"},
	} {
		want := strings.ReplaceAll(step.want, "T/", tree+"/")
		files := changedBy(t, sb, step.script)
		if got := changeText(files); got != want || !slices.Equal(files.Partial, partial) {
			t.Errorf("%s\ngot  %s\nwant %s\npartial %q", step.script, got, want, files.Partial)
		}
	}
}

// What one exec changes while another runs is told of both, and not what came after.
func TestFilesOfExecsAtOnceAreToldOfAll(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	long, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", "mkfifo go; cat go; echo 1 > mine"}})
	eventually(t, "the first exec waits", func() bool {
		return slices.Contains(changedBy(t, sb, "test ! -p go || touch seen").Created, "/workspace/seen")
	})
	if got := changeText(changedBy(t, sb, "echo 1 > theirs")); got != "+/workspace/theirs" {
		t.Errorf("the second: %s", got)
	}
	changedBy(t, sb, "echo > go")
	r, err := long.Wait(t.Context())
	if err != nil || changeText(r.Files) != "+/workspace/go +/workspace/mine +/workspace/seen +/workspace/theirs" {
		t.Errorf("the first: %+v, %v", r, err)
	}
}

// A sandbox learns nothing of another's files, also where both write to one file
// system of the host's.
func TestFilesOfAnotherSandboxAreNotTold(t *testing.T) {
	l := newTestLauncher(t)
	take := func(n int) {
		for range n {
			g, err := l.sessions.Groups.Take(false)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.sessions.Groups.Leave(g) })
		}
	}
	take(filewatch.MaxGroups)
	one, other := ownedDir(t, 1000, "x"), ownedDir(t, 1000, "x")
	a, b := createUp(t, l, "", spec.Config{Workspace: one}), createUp(t, l, "", spec.Config{Workspace: other})
	changedBy(t, a, "true")       // from here on it is watched
	take(filewatch.MaxGroups - 1) // if it shared a group, the other would share the same
	changedBy(t, b, "true")
	p, _ := startPiped(t, a, spec.Command{Args: []string{"sh", "-c", "touch started; until test -e go; do sleep 0.01; done"}})
	eventually(t, "the first runs", func() bool { _, err := os.Stat(filepath.Join(one, "started")); return err == nil })
	if got := changeText(changedBy(t, b, "echo 1 > x; echo 1 > /tmp/x")); got != "+/tmp/x +/workspace/x" {
		t.Errorf("the second: %s", got)
	}
	if err := os.WriteFile(filepath.Join(one, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(t.Context()); err != nil || changeText(r.Files) != "+/workspace/started" {
		t.Errorf("the first: %+v, %v", r, err)
	}
}

// However much a command does, that costs the host little, and the Result says that
// there is more.
func TestFilesOfAHostileExecAreBounded(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	files := changedBy(t, sb, "i=0; while [ $i -lt 6000 ]; do : > f$i; i=$((i+1)); done")
	if !files.Truncated || len(files.Created) != spec.MaxFiles || files.Count() != spec.MaxFiles {
		t.Errorf("%d told, truncated: %v", files.Count(), files.Truncated)
	}
	if got := changeText(changedBy(t, sb, "touch after")); got != "+/workspace/after" {
		t.Errorf("the next exec: %s", got)
	}
}

// Whoever is not asked to watch does not, and a detached command is not watched.
func TestFilesAreNotToldOfAll(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	for _, c := range []spec.Command{{NoFiles: true}, {Detached: true}} {
		c.Args = []string{"touch", "x"}
		p, err := sb.Start(t.Context(), c, [3]*os.File{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		r, err := p.Wait(t.Context())
		if err != nil || r.Files != nil || len(r.Notes) > 0 {
			t.Errorf("%+v: %+v, %v", c, r, err)
		}
	}
	if sb.session.Files.Watching() {
		t.Error("the sandbox is watched")
	}
}

// Where files can't be watched, commands run and the Result says why nothing is told.
func TestFilesThatCantBeToldAreNoted(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	for range 2 * filewatch.MaxGroups { // all that a launcher takes
		g, err := l.sessions.Groups.Take(true)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.sessions.Groups.Leave(g) }()
	}
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"true"}})
	r, err := p.Wait(t.Context())
	if err != nil || !r.OK() || r.Files != nil || !strings.Contains(strings.Join(r.Notes, "\n"), "which files changed is not known") {
		t.Errorf("got %+v, %v", r, err)
	}
}

// A workspace that is attached is told of, from then on, and what is watched keeps
// nothing from being taken away.
func TestFilesOfAnAttachedWorkspaceAreTold(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	changedBy(t, sb, "touch private")
	for _, name := range []string{"one", "two"} {
		if err := sb.SetWorkspace(t.Context(), ownedDir(t, 1000, "x"), Sources{}); err != nil {
			t.Fatal(err)
		}
		files := changedBy(t, sb, "echo 1 > "+name)
		if got := changeText(files); got != "+/workspace/"+name || !slices.Equal(files.Partial, []string{"/workspace"}) {
			t.Errorf("got %s, partial %q", got, files.Partial)
		}
	}
	// By another process, as it were.
	other, err := New(Dirs{State: l.State, Data: l.Data})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	theirs, err := other.Open(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Release()
	if err := theirs.SetWorkspace(t.Context(), ownedDir(t, 1000, "x"), Sources{}); err != nil {
		t.Fatal(err)
	}
	again, err := l.Open(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	if got := changeText(changedBy(t, again, "echo 1 > three")); got != "+/workspace/three" {
		t.Errorf("got %s", got)
	}
}

// A snapshot puts new layers on the sandbox's own directories as well; a fork has what
// it has begun with below its layers.
func TestFilesOfAnExecAreToldAfterASnapshot(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	dir := ownedDir(t, 4321, "host\n")
	c := spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}, Cwd: spec.WorkspacePath}
	sb := createUp(t, l, "", c)
	sh(t, sb, "echo 1 | tee file gone ~/h "+dir+"/made "+dir+"/away")
	if err := sb.Snapshot(t.Context(), "snap"); err != nil {
		t.Fatal(err)
	}
	for name, sb := range map[string]*Sandbox{"the sandbox": sb, "its fork": forkOf(t, l, "snap", c)} {
		files := changedBy(t, sb, "cd "+dir+"; echo 2 | tee -a made given > new; rm away; cd; echo 2 >> h; cd /workspace; echo 2 | tee -a file > more; rm gone")
		want := strings.ReplaceAll("+DIR/new +/workspace/more -DIR/away -/workspace/gone ~DIR/given ~DIR/made ~/home/sandbox/h ~/workspace/file", "DIR", dir)
		sorted := strings.Fields(want)
		slices.Sort(sorted)
		if got := changeText(files); got != strings.Join(sorted, " ") || len(files.Partial) > 0 {
			t.Errorf("%s\ngot  %s, in part %q\nwant %s", name, got, files.Partial, sorted)
		}
	}
}
