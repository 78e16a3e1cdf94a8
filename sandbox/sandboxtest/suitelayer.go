package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// layerClaims are about the writes of a sandbox to its overlays.
var layerClaims = []claim{
	{"changes are those of the overlay", Overlays, checkChanges},
	{"only listed changes are applied", Overlays, checkListed},
	{"a change of both sides is a conflict", Overlays, checkConflict},
	{"only named conflicts are overwritten", Overlays, checkOverwriteOnly},
	{"a discard throws away the changes", Overlays, checkDiscard},
	{"a discard needs an overlay", Overlays, checkDiscardNeedsOverlay},
	{"transactions join and are taken back", Overlays, checkTransactions},
	{"transactions conflict with other commands", Overlays, checkTransactionConflict},
	{"a transaction tells when it joins", Overlays, checkJoining},
	{"a snapshot has the files of its time", Overlays, checkSnapshot},
	{"a missing snapshot is not found", Overlays, checkMissingSnapshot},
}

// An overlaid is a sandbox with one overlay: a directory of the host with the files "old", "kept" and "sub/deep".
type overlaid struct {
	*world
	*sandbox.Sandbox
	dir string
}

func (w *world) overlaid(storage sandbox.Storage) overlaid {
	w.Helper()
	dir := w.hostDir()
	w.must(os.Mkdir(dir+"/sub", 0o755))
	for _, name := range []string{"old", "kept", "sub/deep"} {
		w.must(os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644))
	}
	return w.overlay(dir, storage)
}

func (w *world) overlay(dir string, storage sandbox.Storage, options ...sandbox.CreateOption) overlaid {
	w.Helper()
	config := w.options.Config
	config.Overlays, config.Storage = []string{dir}, storage
	return overlaid{w, w.create(config, options...), dir}
}

// script is a shell script. In the text, D is the overlaid directory, and a path that begins with @ begins at the root.
func (o overlaid) script(text string) sandbox.Command {
	text = strings.NewReplacer("D/", "@"+o.dir+"/").Replace(text)
	return shell(`put() { printf %s "$2" > "$1"; }; ` + strings.ReplaceAll(text, "@", "$SUITE_ROOT"))
}

func (o overlaid) do(text string) sandbox.Result {
	o.Helper()
	return o.exec(o.Sandbox, o.script(text))
}

// shows checks the output of cat.
func (o overlaid) shows(files, want string) {
	o.Helper()
	if r := o.do("cat " + files); string(r.Stdout) != want {
		o.Errorf("%s: %q, want %q; %s: %s", files, r.Stdout, want, r.Reason, r.Stderr)
	}
}

// transact runs a script as a transaction.
func (o overlaid) transact(text string) sandbox.Result {
	o.Helper()
	c := o.script(text)
	c.Transaction = true
	return o.exec(o.Sandbox, c)
}

func (o overlaid) open() *sandbox.Changes {
	o.Helper()
	c, err := o.Changes(o.Context())
	o.must(err)
	return c
}

// wantChanges checks the list of changes.
func (o overlaid) wantChanges(want ...string) {
	o.Helper()
	c := o.open()
	defer o.close(c)
	var got []string
	for change, err := range c.List(sandbox.ListOptions{}) {
		o.must(err)
		got = append(got, fmt.Sprint(change.Kind, " ", strings.TrimPrefix(change.Path, o.dir+"/")))
	}
	if !slices.Equal(got, want) {
		o.Errorf("changes: %q, want %q", got, want)
	}
}

// wantHost checks the directory on the host.
func (o overlaid) wantHost(want map[string]string) {
	o.Helper()
	got := map[string]string{}
	for _, name := range []string{"old", "kept", "sub/deep", "new"} {
		if content, err := os.ReadFile(filepath.Join(o.dir, name)); err == nil {
			got[name] = string(content)
		}
	}
	if !maps.Equal(got, want) {
		o.Errorf("host: %q, want %q", got, want)
	}
}

func (o overlaid) apply(options sandbox.ApplyOptions) (*sandbox.Applied, error) {
	o.Helper()
	c := o.open()
	defer o.close(c)
	return c.Apply(o.Context(), options)
}

func checkChanges(w *world) {
	o := w.overlaid("")
	o.shows("D/old D/sub/deep", "oldsub/deep")
	o.wantChanges()
	o.do("put D/new fresh; put D/kept other; rm D/old D/sub/deep")
	o.wantChanges("modified kept", "created new", "deleted old", "deleted sub/deep")
	o.wantHost(map[string]string{"old": "old", "kept": "kept", "sub/deep": "sub/deep"})
	c := o.open()
	defer o.close(c)
	f, err := c.Open("kept")
	w.must(err)
	content, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil || string(content) != "other" {
		w.Errorf("content: %q, %v", content, err)
	}
	var diff strings.Builder
	if err := c.Diff(&diff); err != nil || !strings.Contains(diff.String(), "-kept") || !strings.Contains(diff.String(), "+other") {
		w.Errorf("diff: %s, %v", diff.String(), err)
	}
}

// A yes is about the changes that were listed.
func checkListed(w *world) {
	o := w.overlaid("")
	list := func() []sandbox.Change {
		w.Helper()
		planned, err := o.apply(sandbox.ApplyOptions{DryRun: true})
		w.must(err)
		return planned.Changes
	}
	o.do("put D/new fresh; rm D/old")
	listed := list()
	for _, other := range []string{"put D/late evil", "rm D/kept"} {
		o.do(other)
		if _, err := o.apply(sandbox.ApplyOptions{Listed: listed}); !errors.Is(err, sandbox.ErrUnlisted) {
			w.Errorf("%s: %v", other, err)
		}
		o.wantHost(map[string]string{"kept": "kept", "old": "old", "sub/deep": "sub/deep"})
		listed = list()
	}
	o.do("rm D/late; put D/new other")
	if done, err := o.apply(sandbox.ApplyOptions{Listed: listed}); err != nil || len(done.Changes) != 3 {
		w.Errorf("applied: %+v, %v", done, err)
	}
	o.wantHost(map[string]string{"new": "other", "sub/deep": "sub/deep"})
}

// conflicts are the paths of a ConflictError.
func conflicts(_ *sandbox.Applied, err error) (paths []string) {
	if conflict, ok := errors.AsType[*sandbox.ConflictError](err); ok {
		for _, c := range conflict.Conflicts {
			paths = append(paths, c.Path)
		}
	}
	return paths
}

func checkConflict(w *world) {
	o := w.overlaid("")
	o.do("put D/new fresh; put D/kept other; rm D/old")
	w.must(os.WriteFile(o.dir+"/kept", []byte("of the host"), 0o644))
	if got := conflicts(o.apply(sandbox.ApplyOptions{})); !slices.Equal(got, []string{o.dir + "/kept"}) {
		w.Errorf("conflicts: %q", got)
	}
	if done, err := o.apply(sandbox.ApplyOptions{Overwrite: true}); err != nil || len(done.Changes) != 3 {
		w.Errorf("applied: %+v, %v", done, err)
	}
	o.wantHost(map[string]string{"kept": "other", "new": "fresh", "sub/deep": "sub/deep"})
	o.wantChanges()
	o.do("put D/new again")
	o.wantChanges("modified new")
}

// An answer to a ConflictError is about the paths that the error named.
func checkOverwriteOnly(w *world) {
	o := w.overlaid("")
	o.do("put D/new fresh; put D/kept other; put D/old other")
	var named []string
	for _, name := range []string{"kept", "old"} {
		w.must(os.WriteFile(o.dir+"/"+name, []byte("of the host"), 0o644))
		got := conflicts(o.apply(sandbox.ApplyOptions{OverwriteOnly: named}))
		if !slices.Equal(got, []string{o.dir + "/" + name}) {
			w.Fatalf("conflicts: %q", got)
		}
		named = append(named, got...)
	}
	o.wantHost(map[string]string{"kept": "of the host", "old": "of the host", "sub/deep": "sub/deep"})
	if _, err := o.apply(sandbox.ApplyOptions{OverwriteOnly: named}); err != nil {
		w.Error(err)
	}
	o.wantHost(map[string]string{"kept": "other", "old": "other", "new": "fresh", "sub/deep": "sub/deep"})
}

func checkDiscard(w *world) {
	o := w.overlaid("")
	o.do("put D/new fresh; rm D/old D/sub/deep; put @/workspace/own kept")
	w.must(o.Discard(w.Context()))
	o.wantChanges()
	o.shows("D/old D/sub/deep @/workspace/own", "oldsub/deepkept")
}

func checkDiscardNeedsOverlay(w *world) {
	var wrong *sandbox.ConfigError
	if err := w.box().Discard(w.Context()); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "has no overlay") {
		w.Errorf("%v", err)
	}
}

func checkTransactions(w *world) {
	o := w.overlaid("")
	if r := o.transact("put D/new fresh; rm D/old; exit 7"); r.Status != sandbox.StatusExited || r.ExitCode != 7 {
		w.Errorf("failed: %+v", r)
	}
	o.wantChanges()
	if r := o.transact("put D/new one; rm D/old; put @/workspace/own one"); !r.OK() {
		w.Errorf("first: %+v", r)
	}
	if r := o.transact("put D/new two; put @/tmp/outside two"); !r.OK() {
		w.Errorf("second: %+v", r)
	}
	o.wantChanges("created new", "deleted old")
	o.shows("D/new @/workspace/own", "twoone")
	w.must(o.Undo(w.Context(), 1))
	o.shows("D/new @/tmp/outside", "onetwo")
	o.do("put D/new other")
	if err := o.Undo(w.Context(), 1); err == nil || !strings.Contains(err.Error(), o.dir+"/new") {
		w.Errorf("undo after a change of others: %v", err)
	}
	o.do("put D/new one")
	var wrong *sandbox.ConfigError
	if err := o.Undo(w.Context(), 2); !errors.As(err, &wrong) {
		w.Errorf("undo of more than there are: %v", err)
	}
}

func checkTransactionConflict(w *world) {
	o := w.overlaid("")
	c := o.script("put D/new mine; cat D/new; cat > /dev/null")
	c.Transaction = true
	var release *io.PipeWriter
	c.Stdin, release = io.Pipe()
	p, out := w.start(o.Sandbox, c)
	w.await(out, "mine")
	o.do("put D/new theirs")
	release.Close()
	r, err := w.end(p)
	if err != nil || r.Status != sandbox.StatusError || r.ExitCode != 0 || !strings.Contains(r.Reason, o.dir+"/new") {
		w.Errorf("%+v, %v", r, err)
	}
	o.shows("D/new", "theirs")
}

func checkJoining(w *world) {
	o := w.overlaid("")
	for _, code := range []int{0, 3} {
		c := o.script(fmt.Sprint("put D/new fresh; exit ", code))
		c.Transaction = true
		p, _ := w.start(o.Sandbox, c)
		joining := p.Joining()
		_, err := w.end(p)
		w.must(err)
		if joining == nil { // the provider cannot tell
			return
		}
		select {
		case <-joining:
			if code != 0 {
				w.Errorf("a transaction with exit code %d joins", code)
			}
		default:
			if code == 0 {
				w.Error("the join was not told")
			}
		}
	}
}

func checkSnapshot(w *world) {
	ctx, name := w.Context(), w.name()
	if err := w.overlaid(sandbox.StorageMemory).Snapshot(ctx, name); !errors.Is(err, sandbox.ErrUnavailable) {
		w.Errorf("in memory: %v", err)
	}
	o := w.overlaid(sandbox.StorageDisk)
	o.do("put D/new fresh; rm D/old; put @/workspace/own here; put @/tmp/lost gone")
	w.must(o.Snapshot(ctx, name))
	w.Cleanup(func() { _ = w.RemoveSnapshot(context.Background(), name) }) // the claim removes it first
	if err := o.Snapshot(ctx, name); !errors.Is(err, sandbox.ErrExists) {
		w.Errorf("twice: %v", err)
	}
	if all, err := w.Snapshots(ctx); err != nil || !slices.Contains(all, name) {
		w.Errorf("list: %q, %v", all, err)
	}
	o.do("put D/new later")
	fork := w.overlay(o.dir, sandbox.StorageDisk, sandbox.From(name))
	fork.shows("D/new D/kept @/workspace/own @/tmp/lost", "freshkepthere")
	fork.wantChanges("created new", "deleted old")
	fork.do("put D/kept other")
	w.must(fork.Discard(ctx))
	fork.wantChanges("created new", "deleted old")
	o.shows("D/new", "later")
	w.must(w.RemoveSnapshot(ctx, name))
	fork.shows("D/new", "fresh")
}

func checkMissingSnapshot(w *world) {
	name := w.name()
	if err := w.RemoveSnapshot(w.Context(), name); !errors.Is(err, sandbox.ErrNotFound) {
		w.Errorf("removal: %v", err)
	}
	if sb, err := w.Create(w.Context(), w.config(), sandbox.From(name)); !errors.Is(err, sandbox.ErrNotFound) {
		w.Errorf("%v, %v", sb, err)
	}
}
