package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// hookKinds are all hooks of runtime-spec v1.3.0 config.md "POSIX-platform
// Hooks", in the order of a container's life.
var hookKinds = []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

func hooksOf(s *specs.Spec, kind string) *[]specs.Hook {
	if s.Hooks == nil {
		s.Hooks = &specs.Hooks{}
	}
	return map[string]*[]specs.Hook{
		"prestart":      &s.Hooks.Prestart, //nolint:staticcheck // Docker uses the deprecated one
		"createRuntime": &s.Hooks.CreateRuntime, "createContainer": &s.Hooks.CreateContainer,
		"startContainer": &s.Hooks.StartContainer, "poststart": &s.Hooks.Poststart, "poststop": &s.Hooks.Poststop,
	}[kind]
}

// A hookLog is a directory that hooks write into, those that run in the
// container's namespaces too: it is mounted at the same path there.
type hookLog struct{ dir string }

func newHookLog(t testing.TB) hookLog {
	t.Helper()
	root := newBusyboxRoot(t)
	return hookLog{root}
}

// hook appends its name to the file order and keeps state and environment.
func (l hookLog) hook(name string, more string) specs.Hook {
	dir := "/log"
	if !inContainer(name) {
		dir = filepath.Join(l.dir, "log")
	}
	script := fmt.Sprintf("echo %[1]s >> %[2]s/order; cat > %[2]s/%[1]s.state; env > %[2]s/%[1]s.env; %[3]s", name, dir, more)
	return specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"HOOK=" + name, "PATH=/bin"}}
}

// inContainer says whether the hook's path and namespaces are the container's.
func inContainer(kind string) bool { return kind == "startContainer" }

// bundle makes one in whose life each hook logs itself, and the program too.
func (l hookLog) bundle(t testing.TB, more map[string]string) *bundle {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(l.dir, "log"), 0o777); err != nil {
		t.Fatal(err)
	}
	return newBundle(t, []string{"sh", "-c", "echo program >> /log/order"}, func(s *specs.Spec) {
		s.Root = &specs.Root{Path: l.dir}
		s.Annotations = map[string]string{"org.example": "kept"}
		for _, kind := range hookKinds {
			h := hooksOf(s, kind)
			*h = append(*h, l.hook(kind, more[kind]))
		}
	})
}

func (l hookLog) read(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(l.dir, "log", name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}

func (l hookLog) order(t testing.TB) string {
	t.Helper()
	return strings.Join(strings.Fields(l.read(t, "order")), " ")
}

func TestHooksRunInOrderWithStateAndEnvironment(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		t.Setenv("FROM_THE_CALLER", "must not reach a hook")
		l := newHookLog(t)
		b := l.bundle(t, nil)
		pid := r.create(b, "c")
		// poststart runs at create, as in every runc so far.
		if got, want := l.order(t), "prestart createRuntime createContainer poststart"; got != want {
			t.Errorf("after create: %s, want %s", got, want)
		}
		r.run("start", "c")
		r.waitUntil("c", "stopped")
		r.run("delete", "c")
		if got, want := l.order(t), "prestart createRuntime createContainer poststart startContainer program poststop"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
		statuses := map[string]string{
			"prestart": "creating", "createRuntime": "creating", "createContainer": "creating", "startContainer": "created",
			"poststart": "created", "poststop": "stopped",
		}
		for _, kind := range hookKinds {
			var got map[string]any
			decode(t, l.read(t, kind+".state"), &got)
			want := map[string]any{"ociVersion": "1.3.0", "id": "c", "status": statuses[kind], "pid": float64(pid), "bundle": b.dir,
				"annotations": map[string]any{"org.example": "kept"}}
			switch kind {
			case "poststop":
				delete(want, "pid")
			case "createContainer", "startContainer": // told in the container's pid namespace
				want["pid"] = got["pid"]
			}
			if g, w := asJSON(t, got), asJSON(t, want); g != w {
				t.Errorf("%s: state %s, want %s", kind, g, w)
			}
			env := slices.Sorted(strings.Lines(l.read(t, kind+".env")))
			env = slices.DeleteFunc(env, func(e string) bool { // the shell's own
				return strings.HasPrefix(e, "PWD=") || strings.HasPrefix(e, "SHLVL=") || strings.HasPrefix(e, "OLDPWD=") || strings.HasPrefix(e, "_=")
			})
			if want := []string{"HOOK=" + kind + "\n", "PATH=/bin\n"}; !slices.Equal(env, want) {
				t.Errorf("%s: environment %q", kind, env)
			}
		}
	})
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// How the life of a container goes on whose hook fails; each way it ends, no
// container is left.
var failingHooks = map[string]struct {
	create, delete result
	order          string
}{
	"prestart":        {create: result{code: 1, stderr: "NAME create failed: .*error running prestart hook #0: exit status 7"}, order: "prestart poststop"},
	"createRuntime":   {create: result{code: 1, stderr: "NAME create failed: .*error running createRuntime hook #0: exit status 7"}, order: "prestart createRuntime poststop"},
	"createContainer": {create: result{code: 1, stderr: "NAME create failed: .*error running createContainer hook #0: exit status 7"}, order: "prestart createRuntime createContainer poststop"},
	"poststart":       {create: result{code: 1, stderr: "NAME create failed: error running poststart hook #0: exit status 7"}, order: "prestart createRuntime createContainer poststart poststop"},
	// The caller of start has gone by then.
	"startContainer": {order: "prestart createRuntime createContainer poststart startContainer poststop"},
	"poststop": {delete: result{code: 1, stderr: "error running poststop hook #0: exit status 7"},
		order: "prestart createRuntime createContainer poststart startContainer program poststop"},
}

func TestFailingHooksEndAsRuncs(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		for kind, want := range failingHooks {
			l := newHookLog(t)
			b := l.bundle(t, map[string]string{kind: "exit 7"})
			if r.shows(want.create, "create", "--bundle", b.dir, "c").code == 0 {
				r.run("start", "c")
				r.waitUntil("c", "stopped")
				r.shows(want.delete, "delete", "c")
			}
			if got := l.order(t); got != want.order {
				t.Errorf("%s fails: order %s, want %s", kind, got, want.order)
			}
			if ids := r.ids(); len(ids) != 0 {
				t.Errorf("%s fails: left %q", kind, ids)
			}
		}
	})
}

// In the foreground a failing hook is the status of run, but for poststop,
// when the program's own is known already.
func TestFailingHooksOfRun(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		for kind, want := range map[string]result{
			"createRuntime":  {code: 1, stderr: "NAME run failed: .*error running createRuntime hook #0: exit status 7"},
			"startContainer": {code: 255, stderr: "error running startContainer hook #0: exit status 7"},
			"poststart":      {code: 1, stderr: "NAME run failed: error running poststart hook #0: exit status 7"},
			"poststop":       {},
		} {
			b := newHookLog(t).bundle(t, map[string]string{kind: "exit 7"})
			got := run(t, r.command("run", "--bundle", b.dir, "c"))
			r.compare(got, want, []string{"run with a failing", kind})
			for _, id := range r.ids() { // a failing poststop leaves its container behind
				r.run("delete", "--force", id)
			}
		}
	})
}

// A hook that takes longer than its timeout is killed, and has failed.
func TestHooksTimeoutIsKept(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"true"}, func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{
				{Path: "/bin/sh", Args: []string{"sh", "-c", "exit 0"}, Timeout: new(60)},
				{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Timeout: new(1)},
			}}
		})
		r.shows(result{code: 1, stderr: "error running createRuntime hook #1: hook ran past specified timeout of 1.0s"}, "run", "--bundle", b.dir, "c")
	})
}

// The second hook of a kind does not run when the first has failed, and one
// that is not there or has a relative path is refused.
func TestHooksRunUntilOneFails(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		mark := filepath.Join(t.TempDir(), "mark")
		with := func(hooks ...specs.Hook) *bundle {
			return newBundle(t, []string{"true"}, func(s *specs.Spec) { s.Hooks = &specs.Hooks{CreateRuntime: hooks} })
		}
		b := with(specs.Hook{Path: "/bin/false"}, specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "echo > " + mark}})
		r.shows(result{code: 1, stderr: "error running createRuntime hook #0: exit status 1"}, "run", "--bundle", b.dir, "c")
		if _, err := os.Stat(mark); err == nil {
			t.Error("the second hook has run")
		}
		r.shows(result{code: 1, stderr: "error running createRuntime hook #0: .*/nowhere"}, "run", "--bundle", with(specs.Hook{Path: "/nowhere"}).dir, "c")
		r.shows(result{code: 1, stderr: "error running createRuntime hook #0: .*relative"}, "run", "--bundle", with(specs.Hook{Path: "relative"}).dir, "c")
	})
}
