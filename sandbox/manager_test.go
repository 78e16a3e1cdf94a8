package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"net"
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

func TestManagerSaysWhatIsMissingWhenItIsMade(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "launcher.sock")
	missing := &sandboxtest.Fake{Missing: fmt.Errorf("the frobnicator %w: install it", sandbox.ErrUnavailable)}
	broken := &sandboxtest.Fake{Missing: errors.New("on fire")}
	for name, test := range map[string]struct {
		config      sandbox.ManagerConfig
		unavailable bool
		says        []string
	}{
		"no launcher":     {sandbox.ManagerConfig{Socket: socket}, true, []string{socket, "sandbox-runtime launcher"}},
		"no program":      {sandbox.ManagerConfig{Launcher: []string{"/no/such/launcher"}}, true, []string{"/no/such/launcher"}},
		"no launcher's":   {sandbox.ManagerConfig{Launcher: []string{"sh", "-c", "echo cause >&2; exit 3"}}, true, []string{"cause", "exit status 3"}},
		"dial":            {sandbox.ManagerConfig{Dial: func(context.Context) (*net.UnixConn, error) { return nil, errors.New("cut") }}, true, []string{"cut"}},
		"all missing":     {sandbox.ManagerConfig{Socket: socket, Providers: []sandbox.Provider{missing}, Prefer: []string{"fake", "isolated"}}, true, []string{"frobnicator", socket}},
		"broken":          {sandbox.ManagerConfig{Providers: []sandbox.Provider{broken}, Prefer: []string{"fake", "local"}}, false, []string{"on fire"}},
		"unknown":         {sandbox.ManagerConfig{Prefer: []string{"isolatd"}}, false, []string{`"isolatd"`, "isolated, local"}},
		"listens":         {sandbox.ManagerConfig{Launcher: []string{"/opt/sandbox-runtime", "--root", "/x", "launcher"}}, false, []string{"--fd 3", "Socket"}},
		"two ways":        {sandbox.ManagerConfig{Socket: socket, Launcher: []string{"x"}}, false, []string{"at most one"}},
		"nobody provides": {sandbox.ManagerConfig{Providers: []sandbox.Provider{nil}}, false, []string{"nil"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sandbox.NewManager(test.config)
			if err == nil || errors.Is(err, sandbox.ErrUnavailable) != test.unavailable {
				t.Fatalf("got %v", err)
			}
			for _, part := range test.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func TestALauncherThatServesNobodySaysSo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := sandbox.OpenManager(ctx, sandbox.ManagerConfig{Launcher: []string{"sleep", "100"}})
	if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "did not answer on descriptor 3") || !strings.Contains(err.Error(), "--fd 3") {
		t.Errorf("got %v", err)
	}
}

func TestDefaultLauncherIsLookedForOnThePath(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: other users have only launchers that listen")
	}
	t.Setenv("PATH", t.TempDir())
	_, err := sandbox.NewManager(sandbox.ManagerConfig{})
	if err == nil { // somebody listens on this host
		return
	}
	if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "sandbox-runtime") || !strings.Contains(err.Error(), "PATH") {
		t.Errorf("got %v", err)
	}
}

func TestWhatIsNoLauncherSaysSo(t *testing.T) {
	for program, says := range map[string]string{"true": "exit status 0: it said nothing", "cat /no/such": "exit status 1: cat: /no/such"} {
		_, err := sandbox.NewManager(sandbox.ManagerConfig{Launcher: strings.Fields(program)})
		if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", program, err)
		}
	}
}

func TestManagerTakesTheFirstThatCanBeHad(t *testing.T) {
	missing := &sandboxtest.Fake{Missing: sandbox.ErrUnavailable}
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Providers: []sandbox.Provider{missing}, Prefer: []string{"fake", "local"}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if info, err := create(t, m, sandbox.Config{}).Info(t.Context()); err != nil || info.Provider != "local" {
		t.Errorf("got %+v, %v", info, err)
	}
}

// newFake is a manager of sandboxes that a function plays.
func newFake(t testing.TB, f *sandboxtest.Fake) *sandbox.Manager {
	t.Helper()
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Providers: []sandbox.Provider{f}, Prefer: []string{"fake"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestProviderPerSandbox(t *testing.T) {
	m := newFake(t, &sandboxtest.Fake{})
	local := create(t, m, sandbox.Config{}, sandbox.Using("local"), sandbox.Named("here"))
	fake := create(t, m, sandbox.Config{})
	r, err := local.Run(t.Context(), "echo $((6 * 7))")
	if err != nil || string(r.Stdout) != "42\n" {
		t.Errorf("got %+v, %v", r, err)
	}
	infos, err := m.List(t.Context())
	if err != nil || len(infos) != 2 || infos[0].ID != fake.ID() || infos[1].ID != "here" {
		t.Errorf("got %+v, %v", infos, err)
	}
	if found, err := m.Get(t.Context(), "here"); err != nil || found.ID() != "here" {
		t.Errorf("got %v, %v", found, err)
	}
	if _, err := m.Create(t.Context(), sandbox.Config{}, sandbox.Using("nobody")); err == nil {
		t.Error("nobody provided one")
	}
}

func TestMistakesInAConfigurationAreNamed(t *testing.T) {
	m := newLocal(t)
	_, err := m.Create(t.Context(), sandbox.Config{Cwd: "here", Limits: sandbox.Limits{Memory: 1}})
	var field *sandbox.FieldError
	if !errors.As(err, &field) || !strings.Contains(err.Error(), "cwd") || !strings.Contains(err.Error(), "limits.memory") {
		t.Errorf("got %v", err)
	}
	if _, err := m.Up(t.Context(), "a", sandbox.Config{}, sandbox.Named("b")); err == nil {
		t.Error("up with two names")
	}
}

func TestZeroValuesAreSafe(t *testing.T) {
	var m sandbox.Manager
	var sb sandbox.Sandbox
	var p sandbox.Process
	ctx := t.Context()
	_, createErr := m.Create(ctx, sandbox.Config{})
	_, getErr := m.Get(ctx, "x")
	_, listErr := m.List(ctx)
	_, eventsErr := m.Events(ctx)
	_, runErr := sb.Run(ctx, "true")
	_, infoErr := sb.Info(ctx)
	_, statsErr := sb.Stats(ctx)
	_, attachErr := sb.Attach(ctx, "x", nil, nil)
	_, waitErr := p.Wait()
	for n, err := range []error{createErr, getErr, listErr, eventsErr, m.Remove(ctx, "x"), runErr, infoErr, statsErr,
		attachErr, sb.Pause(ctx), waitErr, p.Started(ctx), p.Kill(), p.Resize(sandbox.Winsize{})} {
		if !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("%d: got %v", n, err)
		}
	}
	if err := errors.Join(m.Close(), sb.Close(), p.Close()); err != nil {
		t.Error(err)
	}
}

func TestSandboxWithoutAnIDIsNamed(t *testing.T) {
	_, err := newFake(t, &sandboxtest.Fake{}).Get(t.Context(), "")
	if !errors.Is(err, sandbox.ErrNotFound) || !strings.HasPrefix(err.Error(), `sandbox "" does not exist`) {
		t.Errorf("got %v", err)
	}
}

// With an empty name, a variable that is not set would make sandboxes that nobody finds again.
func TestInvalidNamesAreRefused(t *testing.T) {
	m := newFake(t, &sandboxtest.Fake{})
	for _, name := range []string{"", "-a", ".a", "+a", "a/b", "a b", "\u00e4", "..", strings.Repeat("a", 129)} {
		_, named := m.Create(t.Context(), sandbox.Config{}, sandbox.Named(name))
		_, up := m.Up(t.Context(), name, sandbox.Config{})
		for _, err := range []error{named, up} {
			var wrong *sandbox.ConfigError
			if !errors.As(err, &wrong) || !strings.Contains(err.Error(), "name") {
				t.Errorf("%q: got %v", name, err)
			}
		}
	}
	create(t, m, sandbox.Config{}, sandbox.Named("_A+b-c.9"))
}

func TestMissingCapabilityIsNamed(t *testing.T) {
	sb := create(t, newLocal(t), sandbox.Config{}, sandbox.Named("plain"))
	err := sb.Pause(t.Context())
	if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "plain") || !strings.Contains(err.Error(), "local") {
		t.Errorf("got %v", err)
	}
}

func TestFakeIsHonest(t *testing.T) {
	sb := create(t, newFake(t, &sandboxtest.Fake{}), sandbox.Config{})
	r, err := sb.Run(t.Context(), "true")
	if err != nil || r.Isolation != sandbox.IsolationNone || !slices.Contains(r.Notes, sandboxtest.Note) {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestCloseAfterGivesASandboxGrace(t *testing.T) {
	m := newFake(t, &sandboxtest.Fake{})
	there := func(id string) bool {
		infos, err := m.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(infos, func(i sandbox.Info) bool { return i.ID == id })
	}
	put := func(id string, grace time.Duration) {
		sb := create(t, m, sandbox.Config{}, sandbox.Named(id))
		if err := errors.Join(sb.CloseAfter(grace), sb.CloseAfter(0)); err != nil {
			t.Fatal(err)
		}
		if _, err := sb.Run(t.Context(), "true"); !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
	put("later", time.Hour)
	put("kept", time.Hour)
	put("soon", 10*time.Millisecond)
	for there("soon") {
		time.Sleep(time.Millisecond)
	}
	kept, err := m.Up(t.Context(), "kept", sandbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := kept.Run(t.Context(), "true"); err != nil || !r.OK() || !there("later") {
		t.Errorf("got %+v, %v", r, err)
	}
	removed := &failingRemover{Provider: &sandboxtest.Fake{}}
	m, err = sandbox.NewManager(sandbox.ManagerConfig{Providers: []sandbox.Provider{removed}, Prefer: []string{"fake"}})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := m.Create(t.Context(), sandbox.Config{}, sandbox.Named("at-the-end"))
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.CloseAfter(time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); !errors.Is(err, errStuck) || !strings.Contains(err.Error(), "at-the-end") {
		t.Errorf("got %v", err)
	}
}

// A call that does not get the sandbox only delays its removal.
func TestAFailedCallCallsNoRemovalOff(t *testing.T) {
	m := newFake(t, &sandboxtest.Fake{})
	sb := create(t, m, sandbox.Config{}, sandbox.Named("box"))
	if err := sb.CloseAfter(time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), sandbox.Config{}, sandbox.Named("box")); !errors.Is(err, sandbox.ErrExists) {
		t.Errorf("got %v", err)
	}
	testhost.Eventually(t, "the sandbox is gone", func() bool {
		infos, err := m.List(t.Context())
		return err == nil && len(infos) == 0
	})
}

// Of two times the later one counts. A Manager that closes waits for none, and takes no other.
func TestTheLaterTimeOfACloseAfterCounts(t *testing.T) {
	m := newFake(t, &sandboxtest.Fake{})
	create(t, m, sandbox.Config{}, sandbox.Named("box"))
	var handles []*sandbox.Sandbox
	for range 3 {
		sb, err := m.Get(t.Context(), "box")
		if err != nil {
			t.Fatal(err)
		}
		handles = append(handles, sb)
	}
	if err := errors.Join(handles[0].CloseAfter(500*time.Millisecond), handles[1].CloseAfter(time.Hour)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(700 * time.Millisecond)
	if infos, err := m.List(t.Context()); err != nil || len(infos) != 1 {
		t.Errorf("there are %+v, %v", infos, err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := handles[2].CloseAfter(time.Hour); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// failingRemover is a provider that can't remove.
type failingRemover struct{ sandbox.Provider }

var errStuck = errors.New("stuck")

func (r failingRemover) Create(ctx context.Context, request sandbox.Request) (sandbox.Instance, error) {
	return bareInstance(r.Provider.Create(ctx, request))
}

func (failingRemover) Remove(context.Context, string) error { return errStuck }

// bareInstance returns an instance without any optional ability.
func bareInstance(i sandbox.Instance, err error) (sandbox.Instance, error) {
	return struct{ sandbox.Instance }{i}, err
}
