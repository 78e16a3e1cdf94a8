package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// abilityClaims are about the optional abilities, and about their lack.
var abilityClaims = []claim{
	{"a missing ability is an error", "", checkLack},
	{"a pause halts a sandbox", Pauses, checkPause},
	{"limits change while a sandbox runs", Limits, checkLimits},
	{"statistics count", Statistics, checkStatistics},
	{"events tell of new and removed sandboxes", Events, checkEvents},
	{"a terminal has its size", Terminals, checkTerminal},
	{"a terminal has an end of input", Terminals, checkEndOfInput},
	{"a detached command has one Result for one caller", Detached, checkDetached},
	{"a detached command keeps head and tail of its output", Detached, checkDetachedLimit},
	{"a detached command goes on without its caller", Detached, checkDetachedClose},
	{"a workspace replaces another one", OtherWorkspaces, checkOtherWorkspace},
	{"connections lead to loopback ports alone", Connections, checkConnections},
	{"the sensitivity of a sandbox only rises", NetworkChanges, checkSensitivity},
	{"images have names and ids", Images, checkImages},
}

// lacks are calls that need an ability.
func lacks(w *world) map[Ability]func(sb *sandbox.Sandbox) error {
	ctx := w.Context()
	start := func(sb *sandbox.Sandbox, change func(c *sandbox.Command)) error {
		c := shell("true")
		change(&c)
		p, err := sb.Start(ctx, c)
		if err == nil {
			err = p.Close()
		}
		return err
	}
	return map[Ability]func(sb *sandbox.Sandbox) error{
		Directories: func(sb *sandbox.Sandbox) error { return start(sb, func(c *sandbox.Command) { c.Cwd = "/tmp" }) },
		Terminals: func(sb *sandbox.Sandbox) error {
			return start(sb, func(c *sandbox.Command) { c.Terminal = &sandbox.Winsize{} })
		},
		Detached:        func(sb *sandbox.Sandbox) error { return start(sb, func(c *sandbox.Command) { c.Detached = true }) },
		Overlays:        func(sb *sandbox.Sandbox) error { _, err := sb.Changes(ctx); return err },
		Pauses:          func(sb *sandbox.Sandbox) error { return errors.Join(sb.Pause(ctx), sb.Resume(ctx)) },
		Limits:          func(sb *sandbox.Sandbox) error { return sb.Update(ctx, sandbox.Limits{}) },
		Statistics:      func(sb *sandbox.Sandbox) error { _, err := sb.Stats(ctx); return err },
		Events:          func(*sandbox.Sandbox) error { _, err := w.Events(ctx); return err },
		OtherWorkspaces: func(sb *sandbox.Sandbox) error { return sb.SetWorkspace(ctx, w.hostDir()) },
		Connections:     func(sb *sandbox.Sandbox) error { _, err := sb.Dial(ctx, "tcp", ":80"); return err },
		NetworkChanges:  func(sb *sandbox.Sandbox) error { _, err := sb.RaiseSensitivity(ctx, ""); return err },
		Images:          func(*sandbox.Sandbox) error { _, err := w.Images(ctx); return err },
	}
}

func checkLack(w *world) {
	sb := w.box()
	for ability, call := range lacks(w) {
		if !slices.Contains(w.options.Without, ability) {
			continue
		}
		var wrong *sandbox.ConfigError
		if err := call(sb); !errors.Is(err, sandbox.ErrUnavailable) && !errors.As(err, &wrong) {
			w.Errorf("%s: %v", ability, err)
		}
	}
}

func checkPause(w *world) {
	ctx, sb := w.Context(), w.box()
	for range 2 { // a second pause is no error
		w.must(sb.Pause(ctx))
	}
	if info, err := sb.Info(ctx); err != nil || info.State != sandbox.StatePaused {
		w.Errorf("%+v, %v", info, err)
	}
	if _, err := sb.Run(ctx, "true"); !errors.Is(err, sandbox.ErrPaused) || err.Error() != "sandbox "+sb.ID()+" is paused: resume it first" {
		w.Errorf("%v", err)
	}
	for range 2 {
		w.must(sb.Resume(ctx))
	}
	if info, err := sb.Info(ctx); err != nil || info.State != sandbox.StateRunning {
		w.Errorf("%+v, %v", info, err)
	}
	w.output(sb, "echo on", "on\n")
}

func checkLimits(w *world) {
	ctx, sb := w.Context(), w.box()
	w.must(sb.Update(ctx, sandbox.Limits{Memory: 64 << 20}))
	if r := w.run(sb, "exec tail /dev/zero"); r.Status != sandbox.StatusOOMKilled || r.ExitCode != 137 {
		w.Errorf("%+v", r)
	}
	var wrong *sandbox.ConfigError
	if err := sb.Update(ctx, sandbox.Limits{Memory: 1}); !errors.As(err, &wrong) {
		w.Errorf("a limit of one byte: %v", err)
	}
}

func checkStatistics(w *world) {
	sb := w.box()
	w.run(sb, "head -c 50000000 /dev/zero | tail -c 40000000 | wc -c")
	if stats, err := sb.Stats(w.Context()); err != nil || stats.CPU <= 0 || stats.MemoryPeak < 32<<20 || stats.PidsPeak < 1 {
		w.Errorf("%+v, %v", stats, err)
	}
}

func checkEvents(w *world) {
	events, err := w.Events(w.Context())
	w.must(err)
	defer w.close(events)
	sb := w.box()
	w.must(sb.Close())
	var seen []sandbox.EventType
	for len(seen) < 2 {
		ctx, cancel := context.WithTimeout(w.Context(), w.patience)
		e, err := events.Next(ctx)
		cancel()
		if err != nil {
			w.Fatalf("after %v: %v", seen, err)
		}
		if e.ID == sb.ID() && e.Type != sandbox.EventDied {
			seen = append(seen, e.Type)
		}
	}
	if seen[0] != sandbox.EventCreated || seen[1] != sandbox.EventRemoved {
		w.Errorf("%v", seen)
	}
	if err := errors.Join(events.Close(), events.Close()); err != nil {
		w.Error(err)
	}
}

func checkTerminal(w *world) {
	in, typed, err := os.Pipe()
	w.must(err)
	defer in.Close()
	defer typed.Close()
	c := shell("stty -echo; stty size; read x; stty size; exit 4")
	c.Terminal, c.Stdin = &sandbox.Winsize{Rows: 5, Columns: 70}, in
	p, out := w.start(w.box(), c)
	w.await(out, "5 70\r\n")
	w.must(p.Resize(sandbox.Winsize{Rows: 6, Columns: 80}))
	fmt.Fprintln(typed)
	if r, err := w.end(p); err != nil || r.ExitCode != 4 {
		w.Errorf("%+v, %v", r, err)
	}
	if got := out.String(); got != "5 70\r\n6 80\r\n" {
		w.Errorf("%q", got)
	}
}

// The end of a reader is the end of the input on a terminal, also without a last newline.
func checkEndOfInput(w *world) {
	sb := w.box()
	for _, input := range []string{"", "line\n", "half", strings.Repeat("line\n", 5000)} {
		c := shell("stty -echo; wc -c")
		c.Terminal, c.Stdin, c.Timeout = &sandbox.Winsize{Rows: 5, Columns: 70}, strings.NewReader(input), time.Minute
		r := w.exec(sb, c)
		if want := fmt.Sprintf("%d\r\n", len(input)); !r.OK() || !strings.HasSuffix(string(r.Stdout), want) {
			w.Errorf("%.10q, %d: %+v", input, len(input), r)
		}
	}
}

// detach starts a detached command.
func (w *world) detach(sb *sandbox.Sandbox, line string, limit int64) *sandbox.Process {
	w.Helper()
	c := shell(line)
	c.Detached, c.OutputLimit = true, limit
	p, err := sb.Start(w.Context(), c)
	w.must(err)
	return p
}

func checkDetached(w *world) {
	ctx, sb := w.Context(), w.box()
	id := w.detach(sb, "echo first; until [ -e go ]; do sleep 0.02; done; echo second; echo error >&2; exit 3", 0).ID()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if other, err := sb.Attach(ended, id, nil, nil); err == nil {
		w.Errorf("attached with a context that is done: %v", other)
	}
	execs, err := sb.Execs(ctx)
	if err != nil || len(execs) != 1 || execs[0].ID != id || !execs[0].Detached || execs[0].Ended || execs[0].Args[0] != "sh" {
		w.Errorf("execs: %+v, %v", execs, err)
	}
	out := &buffer{}
	attached, err := sb.Attach(ctx, id, out, nil)
	w.must(err)
	w.await(out, "first\n")
	w.run(sb, "touch go")
	if r, err := w.end(attached); err != nil || r.ExitCode != 3 || r.Status != sandbox.StatusExited || string(r.Stderr) != "error\n" {
		w.Errorf("%+v, %v", r, err)
	}
	w.await(out, "first\nsecond\n")
	for _, id := range []string{id, "missing"} {
		if _, err := sb.Attach(ctx, id, nil, nil); !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), id) {
			w.Errorf("attach to %s: %v", id, err)
		}
	}
	var wrong *sandbox.ConfigError
	if _, err := sb.Attach(ctx, "", nil, nil); !errors.As(err, &wrong) {
		w.Errorf("attach without an id: %v", err)
	}
}

func checkDetachedLimit(w *world) {
	sb := w.box()
	id := w.detach(sb, "printf 12345678", 5).ID()
	w.eventually("the end", func() bool {
		execs, err := sb.Execs(w.Context())
		return err == nil && len(execs) == 1 && execs[0].Ended
	})
	attached, err := sb.Attach(w.Context(), id, nil, nil)
	w.must(err)
	if r, err := w.end(attached); err != nil || string(r.Stdout) != "12378" || !r.StdoutTruncated || r.StdoutOmitted != 3 || !r.OK() {
		w.Errorf("%+v, %v", r, err)
	}
}

func checkDetachedClose(w *world) {
	sb := w.box()
	p := w.detach(sb, "until [ -e go ]; do sleep 0.02; done; echo end", 0)
	id := p.ID()
	w.must(p.Close())
	w.run(sb, "touch go")
	attached, err := sb.Attach(w.Context(), id, nil, nil)
	w.must(err)
	if r, err := w.end(attached); err != nil || string(r.Stdout) != "end\n" || !r.OK() {
		w.Errorf("%+v, %v", r, err)
	}
}

func checkOtherWorkspace(w *world) {
	sb, dir := w.create(w.options.Config), w.hostDir()
	w.must(sb.SetWorkspace(w.Context(), dir))
	if r := w.run(sb, "echo hello > /workspace/made"); !r.OK() {
		w.Errorf("%+v", r)
	}
	if text, err := os.ReadFile(dir + "/made"); err != nil || string(text) != "hello\n" {
		w.Errorf("on the host: %q, %v", text, err)
	}
	if info, err := sb.Info(w.Context()); err != nil || info.Config.Workspace != dir {
		w.Errorf("%q, %v", info.Config.Workspace, err)
	}
}

func checkConnections(w *world) {
	ctx, sb := w.Context(), w.box()
	if c, err := sb.Dial(ctx, "tcp", ":8080"); !errors.Is(err, unix.ECONNREFUSED) {
		w.Errorf("a port that nothing listens on: %v, %v", c, err)
	}
	for _, d := range []struct{ network, address string }{
		{"unix", ":80"}, {"", ":80"}, {"tcp", ""}, {"tcp", "80"}, {"tcp", ":0"}, {"tcp", ":65536"}, {"tcp", ":http"}, {"tcp", "192.0.2.1:80"},
		{"tcp", "0.0.0.0:80"}, {"udp", "[fe80::1]:80"}, {"tcp", "example.com:80"}, {"tcp4", "[::1]:80"}, {"tcp6", "127.0.0.1:80"}, {"tcp", "[::1%lo]:80"},
	} {
		var wrong *sandbox.ConfigError
		_, err := sb.Dial(ctx, d.network, d.address)
		if !errors.As(err, &wrong) || !strings.Contains(wrong.Reason, fmt.Sprintf("%q", d.address)) && !strings.Contains(wrong.Reason, fmt.Sprintf("network %q", d.network)) {
			w.Errorf("%q %q: %v", d.network, d.address, err)
		}
	}
}

func checkSensitivity(w *world) {
	ctx, sb := w.Context(), w.box()
	for _, level := range []sandbox.Sensitivity{sandbox.SensitivitySecret, sandbox.SensitivityInternal, ""} {
		if change, err := sb.RaiseSensitivity(ctx, level); err != nil || change.Sensitivity != sandbox.SensitivitySecret || change.Raised != (level == sandbox.SensitivitySecret) {
			w.Errorf("%q: %+v, %v", level, change, err)
		}
	}
	var wrong *sandbox.ConfigError
	if _, err := sb.SetNetwork(ctx, sandbox.NetworkGrant{Network: sandbox.NetworkFull}); !errors.As(err, &wrong) {
		w.Errorf("a network above the sensitivity: %v", err)
	}
}

func checkImages(w *world) {
	ctx, dir, name := w.Context(), w.hostDir(), "own/"+w.name()+":1"
	w.must(os.WriteFile(dir+"/file", []byte("of an image"), 0o644))
	pulled, err := w.PullImage(ctx, "dir:"+dir, sandbox.PullOptions{Name: name, Cache: w.TempDir()})
	w.must(err)
	full := "docker.io/" + name
	if len(pulled.References) != 1 || pulled.References[0].Name != full {
		w.Errorf("%+v", pulled)
	}
	isPulled := func(i sandbox.Image) bool { return i.ID == pulled.ID && i.Config == nil }
	if all, err := w.Images(ctx); err != nil || !slices.ContainsFunc(all, isPulled) {
		w.Errorf("%+v, %v", all, err)
	}
	for _, text := range []string{name, pulled.ID, pulled.ID[:15]} {
		if got, err := w.Image(ctx, text); err != nil || got.ID != pulled.ID || len(got.Config) == 0 {
			w.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	if err := w.VerifyImage(ctx, name); err != nil {
		w.Error(err)
	}
	if removed, err := w.RemoveImage(ctx, name); err != nil || !slices.Equal(removed.Untagged, []string{full}) || !slices.Equal(removed.Deleted, []string{pulled.ID}) {
		w.Errorf("%+v, %v", removed, err)
	}
	_, missing := w.Image(ctx, name)
	_, again := w.RemoveImage(ctx, name)
	for _, err := range []error{missing, again, w.VerifyImage(ctx, name)} {
		if !errors.Is(err, sandbox.ErrNotFound) {
			w.Errorf("after the removal: %v", err)
		}
	}
	var wrong *sandbox.ConfigError
	if _, err := w.PullImage(ctx, "Not A Name", sandbox.PullOptions{}); !errors.As(err, &wrong) {
		w.Errorf("%v", err)
	}
}
