package sandboxtest

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// lifeClaims are about the life of a sandbox. The last one closes the provider.
var lifeClaims = []claim{
	{"a provider has one name and is available", "", checkProvider},
	{"a sandbox has a name of its own", "", checkNames},
	{"a path that cannot be shown is refused", "", checkPaths},
	{"an Info describes the sandbox", "", checkInfo},
	{"a list has each sandbox", "", checkList},
	{"Up finds a sandbox or makes it", "", checkUp},
	{"Get finds a sandbox", "", checkGet},
	{"a missing sandbox is not found", "", checkMissing},
	{"a removed sandbox is not found", "", checkRemoved},
	{"a removal ends commands", "", checkRemovalEnds},
	{"a removal goes on after the end of its context", "", checkRemovalGoesOn},
	{"Close ends commands and frees the name", "", checkClose},
	{"Close leaves a later sandbox of the name", "", checkLater},
	{"a creation that is given up leaves nothing", "", checkGivenUp},
	{"a closed Manager makes nothing", "", checkClosed},
}

func checkProvider(w *world) {
	if name := w.provider.Name(); name == "" || name != w.provider.Name() {
		w.Errorf("name %q", name)
	}
	if err := w.provider.Available(w.Context()); err != nil {
		w.Error(err)
	}
}

func checkNames(w *world) {
	first, second := w.box(), w.box()
	if first.ID() == "" || first.ID() == second.ID() {
		w.Errorf("without names: %q and %q", first.ID(), second.ID())
	}
	name := w.name()
	if sb := w.box(sandbox.Named(name)); sb.ID() != name {
		w.Errorf("%q is named %q", name, sb.ID())
	}
	if _, err := w.Create(w.Context(), w.config(), sandbox.Named(name)); !errors.Is(err, sandbox.ErrExists) || !strings.Contains(err.Error(), "sandbox "+name+" exists already") {
		w.Errorf("a taken name: %v", err)
	}
}

func checkPaths(w *world) {
	file := w.hostDir() + "/file"
	w.must(os.WriteFile(file, nil, 0o644))
	workspace, overlay := w.options.Config, w.options.Config
	workspace.Workspace, overlay.Overlays = file+"/missing", []string{file + "/missing"}
	for needs, config := range map[Ability]sandbox.Config{HostWorkspaces: workspace, Overlays: overlay} {
		var wrong *sandbox.ConfigError
		if sb, err := w.Create(w.Context(), config); !slices.Contains(w.options.Without, needs) && !errors.As(err, &wrong) {
			w.Errorf("%s: %v, %v", needs, sb, err)
		}
	}
}

func checkInfo(w *world) {
	before, config := time.Now().Add(-time.Second), w.config()
	config.Env = map[string]string{"A": "b"}
	sb := w.create(config)
	info, err := sb.Info(w.Context())
	if err != nil || info.ID != sb.ID() || info.Provider != w.provider.Name() || info.State != sandbox.StateRunning || info.Reused || info.Isolation == "" {
		w.Errorf("%+v, %v", info, err)
	}
	if info.Created.Before(before) || info.Created.After(time.Now().Add(time.Second)) {
		w.Errorf("created at %s", info.Created)
	}
	if info.Config.Workspace != config.Workspace || info.Config.Env["A"] != "b" {
		w.Errorf("%+v", info.Config)
	}
}

func checkList(w *world) {
	prefix := w.name()
	ids := func() (found []string) {
		w.Helper()
		infos, err := w.List(w.Context())
		w.must(err)
		for _, i := range infos {
			if strings.HasPrefix(i.ID, prefix) {
				found = append(found, i.ID)
			}
			if i.Provider != w.provider.Name() {
				w.Errorf("%+v", i)
			}
		}
		return found
	}
	for _, end := range []string{"b", "a"} {
		w.box(sandbox.Named(prefix + end))
	}
	if got := ids(); !slices.Equal(got, []string{prefix + "a", prefix + "b"}) {
		w.Errorf("%q", got)
	}
	w.must(w.Remove(w.Context(), prefix+"a"))
	if got := ids(); !slices.Equal(got, []string{prefix + "b"}) {
		w.Errorf("after a removal: %q", got)
	}
}

func checkUp(w *world) {
	name, config := w.name(), w.config()
	w.Cleanup(func() { w.must(w.Remove(context.Background(), name)) })
	var together sync.WaitGroup
	for range 10 {
		together.Go(func() {
			if sb, err := w.Up(w.Context(), name, config); err != nil || sb.ID() != name {
				w.Errorf("%v, %v", sb, err)
			}
		})
	}
	together.Wait()
	infos, err := w.List(w.Context())
	isNew := func(i sandbox.Info) bool { return i.ID == name }
	first := slices.IndexFunc(infos, isNew)
	if err != nil || first < 0 || slices.ContainsFunc(infos[first+1:], isNew) {
		w.Fatalf("%+v, %v", infos, err)
	}
	sb, err := w.Up(w.Context(), name, config)
	w.must(err)
	if info, err := sb.Info(w.Context()); err != nil || !info.Reused || !info.Created.Equal(infos[first].Created) {
		w.Errorf("%+v, %v", info, err)
	}
}

func checkGet(w *world) {
	sb := w.box()
	w.run(sb, "echo here > f")
	found, err := w.Get(w.Context(), sb.ID())
	w.must(err)
	if found.ID() != sb.ID() {
		w.Errorf("%s is %s", sb.ID(), found.ID())
	}
	w.output(found, "cat f", "here\n")
}

func checkMissing(w *world) {
	ctx, id := w.Context(), w.name()
	if i, err := w.provider.Open(ctx, id); !errors.Is(err, sandbox.ErrNotFound) {
		w.Errorf("Open: %v, %v", i, err)
	}
	if err := w.provider.Remove(ctx, id); !errors.Is(err, sandbox.ErrNotFound) {
		w.Errorf("Remove: %v", err)
	}
	if sb, err := w.Get(ctx, id); !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), id) {
		w.Errorf("Get: %v, %v", sb, err)
	}
	if err := w.Remove(ctx, id); err != nil {
		w.Errorf("Remove of the Manager: %v", err)
	}
}

func checkRemoved(w *world) {
	ctx, sb := w.Context(), w.box()
	w.must(w.Remove(ctx, sb.ID()))
	_, run := sb.Run(ctx, "true")
	_, info := sb.Info(ctx)
	_, get := w.Get(ctx, sb.ID())
	for what, err := range map[string]error{"Run": run, "Info": info, "Get": get} {
		if !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), sb.ID()) {
			w.Errorf("%s: %v", what, err)
		}
	}
	if err := errors.Join(w.Remove(ctx, sb.ID()), sb.Close()); err != nil {
		w.Error(err)
	}
}

// wantLost checks the end of a command in a sandbox that was removed: the Result says so, or the Result is lost, too.
func (w *world) wantLost(p *sandbox.Process) {
	w.Helper()
	if r, err := w.end(p); err == nil && r.Status != sandbox.StatusLost {
		w.Errorf("%+v", r)
	}
}

func checkRemovalEnds(w *world) {
	sb := w.box()
	p, out := w.start(sb, shell("echo begun; sleep 1000"))
	w.await(out, "begun\n")
	w.must(w.Remove(w.Context(), sb.ID()))
	w.wantLost(p)
}

func checkRemovalGoesOn(w *world) {
	config := w.config()
	config.Grace = sandbox.Grace(500 * time.Millisecond)
	sb := w.create(config)
	p, out := w.start(sb, shell("trap '' TERM; echo begun; while :; do sleep 0.05; done"))
	w.await(out, "begun\n")
	ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.Remove(ctx, sb.ID()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		w.Error(err)
	}
	w.wantLost(p)
	w.eventually("the removal", func() bool {
		_, err := w.provider.Open(w.Context(), sb.ID())
		return errors.Is(err, sandbox.ErrNotFound)
	})
}

func checkClose(w *world) {
	ctx, sb := w.Context(), w.box(sandbox.Named(w.name()))
	p, out := w.start(sb, shell("echo begun; sleep 1000"))
	w.await(out, "begun\n")
	var together sync.WaitGroup
	for range 3 {
		together.Go(func() {
			if err := sb.Close(); err != nil {
				w.Error(err)
			}
		})
	}
	together.Wait()
	w.wantLost(p)
	if _, err := sb.Run(ctx, "true"); !errors.Is(err, sandbox.ErrClosed) || !strings.Contains(err.Error(), sb.ID()) {
		w.Errorf("%v", err)
	}
	if _, err := w.Get(ctx, sb.ID()); !errors.Is(err, sandbox.ErrNotFound) {
		w.Errorf("%v", err)
	}
	w.box(sandbox.Named(sb.ID()))
}

// Close removes the sandbox that was made, and no later one with its name.
func checkLater(w *world) {
	ctx, name := w.Context(), w.name()
	old := w.box(sandbox.Named(name))
	w.must(w.Remove(ctx, name))
	later := w.box(sandbox.Named(name))
	w.must(old.Close())
	w.output(later, "echo here", "here\n")
	w.must(later.Close())
	if _, err := w.Get(ctx, name); !errors.Is(err, sandbox.ErrNotFound) {
		w.Errorf("then: %v", err)
	}
}

func checkGivenUp(w *world) {
	ids := func() map[string]bool {
		w.Helper()
		infos, err := w.List(w.Context())
		w.must(err)
		found := map[string]bool{}
		for _, i := range infos {
			found[i.ID] = true
		}
		return found
	}
	before := ids()
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(w.Context(), after)
		sb, err := w.Create(ctx, w.config())
		switch {
		case err == nil:
			w.must(sb.Close())
		case !errors.Is(err, context.DeadlineExceeded):
			w.Errorf("%v", err)
		}
		cancel()
	}
	w.eventually("nothing is left", func() bool { return maps.Equal(ids(), before) })
}

// checkClosed closes the provider, so it is the last claim.
func checkClosed(w *world) {
	sb, err := w.Create(w.Context(), w.config(), sandbox.Tied())
	w.must(err)
	p, out := w.start(sb, shell("echo begun; sleep 1000"))
	w.await(out, "begun\n")
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		w.Error(err)
	}
	r, err := w.end(p) // the last answer may have come before the end of the connection
	ended := err == nil && (r.Status == sandbox.StatusLost || r.Status == sandbox.StatusSignaled)
	if !ended && (!errors.Is(err, sandbox.ErrClosed) || !strings.Contains(err.Error(), sb.ID())) {
		w.Errorf("%+v, %v", r, err)
	}
	if _, err := w.Create(w.Context(), w.config()); !errors.Is(err, sandbox.ErrClosed) {
		w.Errorf("%v", err)
	}
}
