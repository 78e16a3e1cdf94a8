package sandbox_test

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
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/sandboxtest"
)

// A script is a shell script of few words, which the fake's function can play: write FILE TEXT,
// rm FILE, cat FILE, wait FILE, input end and exit CODE.
type script string

// shell has the words as functions of a shell.
const shell = `write() { printf %s "$2" > "$1"; }; wait() { until [ -e "$1" ]; do sleep 0.01; done; }; input() { cat > /dev/null; }; `

func (s script) command() sandbox.Command {
	return sandbox.Command{Args: []string{"sh", "-c", shell + string(s)}}
}

// playScript plays a script in the files of a fake.
func playScript(ctx context.Context, p *sandboxtest.Program) int {
	root, err := p.Root()
	if err != nil {
		fmt.Fprintln(p.Stderr, err)
		return 99
	}
	defer root.Close()
	for line := range strings.SplitSeq(strings.TrimPrefix(p.Command.Args[2], shell), ";") {
		words := strings.Fields(line)
		name := strings.TrimPrefix(words[1], "/")
		var code int
		var err error
		switch words[0] {
		case "write":
			err = root.WriteFile(name, []byte(words[2]), 0o644)
		case "rm":
			err = root.Remove(name)
		case "cat":
			var content []byte
			content, err = root.ReadFile(name)
			fmt.Fprintf(p.Stdout, "%s", content)
		case "wait":
			for _, err := root.Stat(name); err != nil && ctx.Err() == nil; _, err = root.Stat(name) {
				time.Sleep(time.Millisecond)
			}
		case "input":
			_, err = io.Copy(io.Discard, p.Stdin)
		case "exit":
			_, err = fmt.Sscan(words[1], &code)
		}
		if err != nil {
			fmt.Fprintln(p.Stderr, err)
			return 1
		}
		if code != 0 {
			return code
		}
	}
	return 0
}

// A twin is a Manager of real sandboxes, or of fakes, with a directory of the host that holds
// the files "old", "kept" and "sub/deep".
type twin struct {
	*testing.T
	*sandbox.Manager
	dir string
}

// eachTwin runs a test with fakes and with sandboxes: a fake behaves as a sandbox does.
func eachTwin(t *testing.T, test func(t twin)) {
	t.Helper()
	for name, manager := range map[string]func(t *testing.T) *sandbox.Manager{
		"isolated": func(t *testing.T) *sandbox.Manager { return newIsolated(t) },
		"fake":     func(t *testing.T) *sandbox.Manager { return newFake(t, &sandboxtest.Fake{Run: playScript}) },
	} {
		t.Run(name, func(t *testing.T) {
			m, dir := manager(t), t.TempDir()
			if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(dir+"/sub", 0o755)); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"old", "kept", "sub/deep"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			test(twin{t, m, dir})
		})
	}
}

func (t twin) overlaid(storage sandbox.Storage, options ...sandbox.CreateOption) *sandbox.Sandbox {
	t.Helper()
	return create(t, t.Manager, sandbox.Config{Overlays: []string{t.dir}, Storage: storage}, options...)
}

// script has D for the directory.
func (t twin) script(s string) sandbox.Command {
	return script(strings.ReplaceAll(s, "D/", t.dir+"/")).command()
}

func (t twin) run(sb *sandbox.Sandbox, s string) sandbox.Result {
	t.Helper()
	r, err := sb.Exec(t.Context(), t.script(s))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// transact runs a script as a transaction.
func (t twin) transact(sb *sandbox.Sandbox, s string) sandbox.Result {
	t.Helper()
	c := t.script(s)
	c.Transaction = true
	r, err := sb.Exec(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// checkOutput checks the output of a script.
func (t twin) checkOutput(sb *sandbox.Sandbox, s, want string) {
	t.Helper()
	if r := t.run(sb, s); string(r.Stdout) != want {
		t.Errorf("%s: %q, %s: %s", s, r.Stdout, r.Reason, r.Stderr)
	}
}

// changes checks the list of changes.
func (t twin) changes(sb *sandbox.Sandbox, want ...string) {
	t.Helper()
	c, err := sb.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var got []string
	for change, err := range c.List(sandbox.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(change.Kind, " ", strings.TrimPrefix(change.Path, t.dir+"/")))
	}
	if !slices.Equal(got, want) {
		t.Errorf("changes: %q, want %q", got, want)
	}
}

// host checks the directory on the host.
func (t twin) host(want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, name := range []string{"old", "kept", "sub/deep", "new"} {
		if content, err := os.ReadFile(filepath.Join(t.dir, name)); err == nil {
			got[name] = string(content)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("host: %q, want %q", got, want)
	}
}

func TestFakeHasChangesAsASandbox(t *testing.T) {
	eachTwin(t, func(t twin) {
		sb := t.overlaid("")
		t.checkOutput(sb, "cat D/old; cat D/sub/deep", "oldsub/deep")
		t.changes(sb)
		t.run(sb, "write D/new fresh; write D/kept other; rm D/old; rm D/sub/deep")
		t.changes(sb, "modified kept", "created new", "deleted old", "deleted sub/deep")
		t.host(map[string]string{"old": "old", "kept": "kept", "sub/deep": "sub/deep"})
		c, err := sb.Changes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f, err := c.Open("kept")
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil || string(content) != "other" {
			t.Errorf("content: %q, %v", content, err)
		}
		var diff strings.Builder
		if err := c.Diff(&diff); err != nil || !strings.Contains(diff.String(), "-kept") || !strings.Contains(diff.String(), "+other") {
			t.Errorf("diff: %s, %v", diff.String(), err)
		}
	})
}

// A yes is about the changes that were listed.
func TestFakeAppliesOnlyListedChanges(t *testing.T) {
	eachTwin(t, func(t twin) {
		sb := t.overlaid("")
		apply := func(o sandbox.ApplyOptions) (*sandbox.Applied, error) {
			t.Helper()
			c, err := sb.Changes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			return c.Apply(t.Context(), o)
		}
		list := func() []sandbox.Change {
			t.Helper()
			planned, err := apply(sandbox.ApplyOptions{DryRun: true})
			if err != nil {
				t.Fatal(err)
			}
			return planned.Changes
		}
		t.run(sb, "write D/new fresh; rm D/old")
		listed := list()
		for _, other := range []string{"write D/late evil", "rm D/kept"} {
			t.run(sb, other)
			if _, err := apply(sandbox.ApplyOptions{Listed: listed}); !errors.Is(err, sandbox.ErrUnlisted) {
				t.Errorf("%s: %v", other, err)
			}
			t.host(map[string]string{"kept": "kept", "old": "old", "sub/deep": "sub/deep"})
			listed = list()
		}
		t.run(sb, "rm D/late; write D/new other")
		if done, err := apply(sandbox.ApplyOptions{Listed: listed}); err != nil || len(done.Changes) != 3 {
			t.Errorf("applied: %+v, %v", done, err)
		}
		t.host(map[string]string{"new": "other", "sub/deep": "sub/deep"})
	})
}

func TestFakeAppliesAsASandbox(t *testing.T) {
	eachTwin(t, func(t twin) {
		sb := t.overlaid("")
		t.run(sb, "write D/new fresh; write D/kept other; rm D/old")
		if err := os.WriteFile(t.dir+"/kept", []byte("of the host"), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := sb.Changes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conflict, ok := errors.AsType[*sandbox.ConflictError](second(c.Apply(t.Context(), sandbox.ApplyOptions{})))
		if !ok || len(conflict.Conflicts) != 1 || conflict.Conflicts[0].Path != t.dir+"/kept" {
			t.Errorf("conflict: %+v", conflict)
		}
		done, err := c.Apply(t.Context(), sandbox.ApplyOptions{Overwrite: true})
		if err != nil || len(done.Changes) != 3 {
			t.Errorf("applied: %+v, %v", done, err)
		}
		t.host(map[string]string{"kept": "other", "new": "fresh", "sub/deep": "sub/deep"})
		t.changes(sb)
		t.run(sb, "write D/new again")
		t.changes(sb, "modified new")
	})
}

// An answer to a ConflictError is about the paths that the error named.
func TestFakeOverwritesWhatWasNamedAsASandbox(t *testing.T) {
	eachTwin(t, func(t twin) {
		sb := t.overlaid("")
		t.run(sb, "write D/new fresh; write D/kept other; write D/old other")
		c, err := sb.Changes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var named []string
		for _, name := range []string{"kept", "old"} {
			if err := os.WriteFile(t.dir+"/"+name, []byte("of the host"), 0o644); err != nil {
				t.Fatal(err)
			}
			conflict, ok := errors.AsType[*sandbox.ConflictError](second(c.Apply(t.Context(), sandbox.ApplyOptions{OverwriteOnly: named})))
			if !ok || len(conflict.Conflicts) != 1 || conflict.Conflicts[0].Path != t.dir+"/"+name {
				t.Fatalf("conflict: %+v", conflict)
			}
			named = append(named, conflict.Conflicts[0].Path)
		}
		t.host(map[string]string{"kept": "of the host", "old": "of the host", "sub/deep": "sub/deep"})
		if _, err := c.Apply(t.Context(), sandbox.ApplyOptions{OverwriteOnly: named}); err != nil {
			t.Error(err)
		}
		t.host(map[string]string{"kept": "other", "old": "other", "new": "fresh", "sub/deep": "sub/deep"})
	})
}

func second[T any](_ T, err error) error { return err }

func TestFakeDiscardsAsASandbox(t *testing.T) {
	eachTwin(t, func(t twin) {
		sb := t.overlaid("")
		t.run(sb, "write D/new fresh; rm D/old; rm D/sub/deep; write /workspace/own kept")
		if err := sb.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.changes(sb)
		t.checkOutput(sb, "cat D/old; cat D/sub/deep; cat /workspace/own", "oldsub/deepkept")
	})
}

func TestDiscardNeedsAnOverlay(t *testing.T) {
	eachTwin(t, func(t twin) {
		sb := create(t, t.Manager, sandbox.Config{})
		var wrong *sandbox.ConfigError
		if err := sb.Discard(t.Context()); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "has no overlay") {
			t.Errorf("got %v", err)
		}
	})
}

func TestFakeHasTransactionsAsASandbox(t *testing.T) {
	eachTwin(t, func(t twin) {
		sb := t.overlaid("")
		if r := t.transact(sb, "write D/new fresh; rm D/old; exit 7"); r.Status != sandbox.StatusExited || r.ExitCode != 7 {
			t.Errorf("failed: %+v", r)
		}
		t.changes(sb)
		if r := t.transact(sb, "write D/new one; rm D/old; write /workspace/own one"); !r.OK() {
			t.Errorf("first: %+v", r)
		}
		if r := t.transact(sb, "write D/new two; write /tmp/outside two"); !r.OK() {
			t.Errorf("second: %+v", r)
		}
		t.changes(sb, "created new", "deleted old")
		t.checkOutput(sb, "cat D/new; cat /workspace/own", "twoone")
		if err := sb.Undo(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		t.checkOutput(sb, "cat D/new; cat /tmp/outside", "onetwo")
		t.run(sb, "write D/new other")
		if err := sb.Undo(t.Context(), 1); err == nil || !strings.Contains(err.Error(), t.dir+"/new") {
			t.Errorf("undo after a change of others: %v", err)
		}
		t.run(sb, "write D/new one")
		var config *sandbox.ConfigError
		if err := sb.Undo(t.Context(), 2); !errors.As(err, &config) {
			t.Errorf("undo of more than there are: %v", err)
		}
	})
}

func TestFakesTransactionsConflictAsASandboxs(t *testing.T) {
	eachTwin(t, func(t twin) {
		sb := t.overlaid("")
		c := t.script("write D/new mine; cat D/new; input end")
		out := &syncBuffer{}
		input, release := io.Pipe()
		c.Transaction, c.Stdin, c.Stdout = true, input, out
		p, err := sb.Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		out.waitFor(t.T, "mine")
		t.run(sb, "write D/new theirs")
		release.Close()
		r, err := p.Wait()
		if err != nil || r.Status != sandbox.StatusError || r.ExitCode != 0 || !strings.Contains(r.Reason, t.dir+"/new") {
			t.Errorf("result: %+v, %v", r, err)
		}
		t.checkOutput(sb, "cat D/new", "theirs")
	})
}

func TestFakeHasSnapshotsAsASandbox(t *testing.T) {
	eachTwin(t, func(t twin) {
		ctx, name := t.Context(), "snap-"+filepath.Base(filepath.Dir(t.dir))
		memory := t.overlaid(sandbox.StorageMemory)
		if err := memory.Snapshot(ctx, name); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("in memory: %v", err)
		}
		sb := t.overlaid(sandbox.StorageDisk)
		t.run(sb, "write D/new fresh; rm D/old; write /workspace/own here; write /tmp/lost gone")
		if err := sb.Snapshot(ctx, name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { t.RemoveSnapshot(context.Background(), name) })
		if err := sb.Snapshot(ctx, name); !errors.Is(err, sandbox.ErrExists) {
			t.Errorf("twice: %v", err)
		}
		if all, err := t.Snapshots(ctx); err != nil || !slices.Contains(all, name) {
			t.Errorf("list: %q, %v", all, err)
		}
		t.run(sb, "write D/new later")
		fork := t.overlaid(sandbox.StorageDisk, sandbox.From(name))
		t.checkOutput(fork, "cat D/new; cat D/kept; cat /workspace/own; cat /tmp/lost", "freshkepthere")
		t.changes(fork, "created new", "deleted old")
		t.run(fork, "write D/kept other")
		if err := fork.Discard(ctx); err != nil {
			t.Fatal(err)
		}
		t.changes(fork, "created new", "deleted old")
		t.checkOutput(sb, "cat D/new", "later")
		if err := t.RemoveSnapshot(ctx, name); err != nil {
			t.Error(err)
		}
		if err := t.RemoveSnapshot(ctx, name); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("removed twice: %v", err)
		}
		if _, err := t.Create(ctx, sandbox.Config{Overlays: []string{t.dir}}, sandbox.From(name)); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("from a removed one: %v", err)
		}
	})
}

func TestFakeHasDetachedCommandsAsASandbox(t *testing.T) {
	eachTwin(t, func(t twin) {
		ctx := t.Context()
		sb := create(t, t.Manager, sandbox.Config{})
		c := t.script("write /workspace/out first; cat /workspace/out; wait /workspace/go; cat /workspace/out; exit 3")
		c.Detached = true
		p, err := sb.Start(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		id := p.ID()
		giveUp, cancel := context.WithCancel(ctx)
		cancel()
		if other, err := sb.Attach(giveUp, id, nil, nil); err == nil {
			t.Errorf("attached with a context that is done: %v", other)
		}
		execs, err := sb.Execs(ctx)
		if err != nil || len(execs) != 1 || execs[0].ID != id || !execs[0].Detached || execs[0].Ended || execs[0].Args[0] != "sh" {
			t.Errorf("execs: %+v, %v", execs, err)
		}
		var out syncBuffer
		a, err := sb.Attach(ctx, id, &out, nil)
		if err != nil {
			t.Fatal(err)
		}
		out.waitFor(t.T, "first")
		t.run(sb, "write /workspace/out second; write /workspace/go now")
		r, err := a.Wait()
		if err != nil || r.ExitCode != 3 || r.Status != sandbox.StatusExited {
			t.Errorf("result: %+v, %v", r, err)
		}
		out.waitFor(t.T, "firstsecond")
		if _, err := sb.Attach(ctx, id, nil, nil); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("a second result: %v", err)
		}
	})
}

func TestFakeKeepsDetachedOutputAsASandbox(t *testing.T) {
	eachTwin(t, func(t twin) {
		ctx := t.Context()
		sb := create(t, t.Manager, sandbox.Config{})
		c := t.script("write /workspace/out 12345678; cat /workspace/out")
		c.Detached, c.OutputLimit = true, 5
		p, err := sb.Start(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		testhost.Eventually(t.T, "the end", func() bool {
			execs, err := sb.Execs(ctx)
			return err == nil && len(execs) == 1 && execs[0].Ended
		})
		a, err := sb.Attach(ctx, p.ID(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := a.Wait(); err != nil || string(r.Stdout) != "12378" || !r.StdoutTruncated || r.StdoutOmitted != 3 || !r.OK() {
			t.Errorf("result: %+v, %v", r, err)
		}
	})
}
