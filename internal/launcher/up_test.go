package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// upAgain asks for a sandbox by name as "up" does.
func upAgain(t *testing.T, l *Launcher, name string) *Sandbox {
	t.Helper()
	sb, err := l.Create(t.Context(), protocol.Create{Name: name, Reuse: true}, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sb.Release)
	return sb
}

func TestUpAtOnceMakesOneSandbox(t *testing.T) {
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	const asking = 8
	inits := make([]process.ID, asking)
	var reused, made int
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range asking {
		all.Go(func() {
			// Each has a launcher of its own, as each process has.
			other, err := New(Dirs{State: l.State, Data: l.Data})
			if err != nil {
				t.Error(err)
				return
			}
			sb, err := other.Create(t.Context(), protocol.Create{Name: "box", Reuse: true}, Sources{})
			if err != nil {
				t.Error(err)
				return
			}
			defer sb.Release()
			inits[i] = sb.session.Init()
			info, err := sb.Info()
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if info.Reused {
				reused++
			} else {
				made++
			}
			if r, out := sh(t, sb, fmt.Sprintf("echo %d > mine; cat mine", i)); !r.OK() {
				t.Errorf("%d: %+v %q", i, r, out)
			}
		})
	}
	all.Wait()
	if made != 1 || reused != asking-1 || len(slices.Compact(inits)) != 1 {
		t.Errorf("%d made, %d reused: %v", made, reused, inits)
	}
	if err := l.Remove(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, l)
}

// Many hosts have /var/run, a symbolic link to /run.
func TestUpByAnotherPathOfTheStateRootFindsTheSandbox(t *testing.T) {
	l := newTestLauncher(t)
	first := upAgain(t, l, "box")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(l.State), link); err != nil {
		t.Fatal(err)
	}
	other, err := New(Dirs{State: filepath.Join(link, filepath.Base(l.State)), Data: l.Data})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	if again := upAgain(t, other, "box"); again.session.Init() != first.session.Init() || !again.reused {
		t.Errorf("PID 1 is %v by the other path, not %v", again.session.Init(), first.session.Init())
	}
}

func TestAStateRootThatCannotBeResolvedIsNamed(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Dirs{State: loop, Data: dir}); err == nil || !strings.Contains(err.Error(), loop) {
		t.Errorf("got %v", err)
	}
}

func TestUpReplacesWhatIsNotHealthy(t *testing.T) {
	tests := map[string]func(t *testing.T, l *Launcher, sb *Sandbox){
		"dead": func(t *testing.T, _ *Launcher, sb *Sandbox) { killInit(t, sb) },
		"damaged record": func(t *testing.T, l *Launcher, _ *Sandbox) {
			if err := os.WriteFile(filepath.Join(l.Dir("box"), record.FileName), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"record without PID 1": func(t *testing.T, l *Launcher, _ *Sandbox) {
			if err := os.WriteFile(filepath.Join(l.Dir("box"), record.FileName), []byte(`{"version":2}`), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"no socket": func(t *testing.T, l *Launcher, _ *Sandbox) {
			if err := os.Remove(filepath.Join(l.Dir("box"), jobs.SocketName)); err != nil {
				t.Fatal(err)
			}
		},
		"left half made": func(t *testing.T, l *Launcher, _ *Sandbox) {
			if err := os.Remove(filepath.Join(l.Dir("box"), record.FileName)); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			l := newTestLauncher(t)
			first := createUp(t, l, "box", spec.Config{})
			spoil(t, l, first)
			other, err := New(Dirs{State: l.State, Data: l.Data})
			if err != nil {
				t.Fatal(err)
			}
			again := upAgain(t, other, "box")
			if again.session.Init() == first.session.Init() {
				t.Error("it is the same")
			}
			if notes := again.session.Current().Notes; (len(notes) > 0) != strings.Contains(name, "record") {
				t.Errorf("notes %q", notes) // of the files, which nobody can find
			}
			if r, _ := sh(t, again, "true"); !r.OK() {
				t.Errorf("got %+v", r)
			}
			// The handle of the first is none of the second.
			if err := first.Close(); err != nil {
				t.Error(err)
			}
			if r, _ := sh(t, again, "true"); !r.OK() {
				t.Errorf("after the first one's close: %+v", r)
			}
			if err := again.Close(); err != nil {
				t.Error(err)
			}
			checkNothingLeft(t, l)
		})
	}
}

// A killed removal may have killed processes that have yet to end: PID 1 still answers.
func TestUpReplacesASandboxWhoseRemovalHasBegun(t *testing.T) {
	l := newTestLauncher(t)
	first := createUp(t, l, "box", spec.Config{})
	statedir.NoteRemoval(l.Dir("box"))
	again := upAgain(t, l, "box")
	if again.session.Init() == first.session.Init() {
		t.Error("it is the same")
	}
	if r, _ := sh(t, again, "true"); !r.OK() {
		t.Errorf("got %+v", r)
	}
	if statedir.RemovalBegun(l.Dir("box")) {
		t.Error("the new sandbox is said to be under removal")
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, l)
}

func TestATakenNameIsRefused(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	if _, err := l.Create(t.Context(), protocol.Create{Name: "box"}, Sources{}); !errors.Is(err, fault.ErrExists) {
		t.Errorf("up: %v", err)
	}
	killInit(t, sb)
	if _, err := l.Create(t.Context(), protocol.Create{Name: "box"}, Sources{}); !errors.Is(err, fault.ErrExists) {
		t.Errorf("dead: %v", err)
	}
	// A container of the OCI commands.
	if err := os.Mkdir(filepath.Join(l.State, "theirs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, reuse := range []bool{false, true} {
		if _, err := l.Create(t.Context(), protocol.Create{Name: "theirs", Reuse: reuse}, Sources{}); !errors.Is(err, fault.ErrExists) {
			t.Errorf("a container, reuse %v: %v", reuse, err)
		}
	}
	if err := l.Remove(t.Context(), "theirs"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("remove a container: %v", err)
	}
	if _, err := os.Stat(filepath.Join(l.State, "theirs")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"..", ".", "a/b", "@x", "a b", "ü", string(make([]byte, 200))} {
		var config *fault.ConfigError
		if _, err := l.Create(t.Context(), protocol.Create{Name: name}, Sources{}); !errors.As(err, &config) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if err := os.Remove(filepath.Join(l.State, "theirs")); err != nil {
		t.Error(err)
	}
}

// A killed process has begun a removal. Its PID 1 can still seem to be up then.
func TestPruneFinishesARemoval(t *testing.T) {
	l := newTestLauncher(t)
	createUp(t, l, "begun", spec.Config{})
	createUp(t, l, "going-on", spec.Config{})
	for _, id := range []string{"begun", "going-on"} {
		statedir.NoteRemoval(l.Dir(id))
	}
	state, err := statedir.Hold(l.Sandboxes(), "going-on") // as its removal does
	if err != nil {
		t.Fatal(err)
	}
	defer state.Release()
	if pruned, err := l.Prune(t.Context()); err != nil || !slices.Equal(pruned, []string{"begun"}) {
		t.Errorf("pruned %v, %v", pruned, err)
	}
}

func TestPruneSparesTheLivingAndRemovesTheDead(t *testing.T) {
	l := newTestLauncher(t)
	living, tied := createUp(t, l, "living", spec.Config{}), createUp(t, l, "tied", spec.Config{})
	dead, abandoned := createUp(t, l, "dead", spec.Config{}), createUp(t, l, "abandoned", spec.Config{})
	half := createUp(t, l, "half", spec.Config{})
	ends := createUp(t, l, "ends", spec.Config{})
	rewrite := func(sb *Sandbox, change func(*record.Record)) {
		r := sb.session.Current()
		change(&r)
		if err := r.Write(l.Dir(sb.ID())); err != nil {
			t.Fatal(err)
		}
	}
	// Somebody is tied to it and lives, and will see that it has ended.
	rewrite(ends, func(r *record.Record) { r.Tied = true })
	killInit(t, ends)
	rewrite(tied, func(r *record.Record) { r.Tied = true })
	killInit(t, dead)
	rewrite(abandoned, func(r *record.Record) { r.Tied, r.Owner = true, deadProcess(t) })
	if err := os.Remove(filepath.Join(l.Dir("half"), record.FileName)); err != nil {
		t.Fatal(err)
	}
	_ = half
	for _, id := range []string{"living", "tied"} { // held by somebody who changes it
		state, err := statedir.Hold(l.Sandboxes(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer state.Release()
		if id == "tied" {
			state.Release()
		}
	}
	pruned, err := l.Prune(t.Context())
	if err != nil || !slices.Equal(pruned, []string{"abandoned", "dead", "half"}) {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	for _, sb := range []*Sandbox{living, tied} {
		if r, _ := sh(t, sb, "true"); !r.OK() {
			t.Errorf("%s: %+v", sb.ID(), r)
		}
	}
	for _, sb := range []*Sandbox{dead, abandoned} {
		if sb.session.Init().Lives() {
			t.Errorf("PID 1 of %s lives", sb.ID())
		}
	}
	for id, want := range map[string]spec.State{"living": spec.StateRunning, "ends": spec.StateStopped} {
		if i, err := l.Info(t.Context(), id); err != nil || i.State != want {
			t.Errorf("%s: %+v, %v", id, i, err)
		}
	}
}
