package launcher

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// setGroupIDs sets the bit on a directory and on a file of the working directory. It prints the
// modes that they have then.
const setGroupIDs = `mkdir d; echo x > f; chmod 2775 d; chmod 2755 f; stat -c %a d f; mkdir d/below; stat -c %A d/below | cut -c 7`

const (
	groupIDsSet     = "2775\n2755\ns\n"
	groupIDsRefused = "755\n644\nx\n"
)

// noGroupIDs fails if a file of the host has a set-id bit.
func noGroupIDs(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode()&(fs.ModeSetgid|fs.ModeSetuid) != 0 {
			t.Errorf("%s has the mode %s on the host", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The set-group-ID bit is allowed where the host gets no file with it, and refused elsewhere.
func TestGroupIDsStayInTheSandbox(t *testing.T) {
	l := newTestLauncher(t)
	file := filepath.Join(ownedDir(t, 1000, "x"), "given")
	overlay, dir := ownedDir(t, 1000, "x"), ownedDir(t, 1000, "x")
	for name, test := range map[string]struct {
		c    spec.Config
		want string
	}{
		"no directory":        {spec.Config{Cwd: "/workspace"}, groupIDsSet},
		"strict":              {spec.Config{Cwd: "/workspace", Seccomp: "strict"}, groupIDsSet},
		"debug":               {spec.Config{Cwd: "/workspace", Seccomp: "debug"}, groupIDsSet},
		"overlay":             {spec.Config{Overlays: []string{overlay}, Cwd: overlay}, groupIDsSet},
		"overlaid workspace":  {spec.Config{Overlays: []string{overlay}, Workspace: overlay}, groupIDsSet},
		"read-only bind":      {spec.Config{Binds: []spec.Bind{{Source: dir, Target: "/d"}}, Cwd: "/workspace"}, groupIDsSet},
		"workspace":           {spec.Config{Workspace: dir}, groupIDsRefused},
		"strict, workspace":   {spec.Config{Workspace: ownedDir(t, 1000, "x"), Seccomp: "strict"}, groupIDsRefused},
		"writable bind":       {spec.Config{Binds: []spec.Bind{{Source: dir, Target: "/d", Writable: true}}, Cwd: "/workspace"}, groupIDsRefused},
		"writable file":       {spec.Config{Binds: []spec.Bind{{Source: file, Target: "/d", Writable: true}}, Cwd: "/workspace"}, groupIDsRefused},
		"overlay, workspace":  {spec.Config{Overlays: []string{overlay}, Workspace: ownedDir(t, 1000, "x")}, groupIDsRefused},
		"workspace, overlays": {spec.Config{Overlays: []string{overlay}, Cwd: overlay, Workspace: ownedDir(t, 1000, "x")}, groupIDsRefused},
	} {
		t.Run(name, func(t *testing.T) {
			sb := createUp(t, l, "", test.c)
			if _, out := sh(t, sb, setGroupIDs); out.stdout != test.want {
				t.Errorf("%+v", out)
			}
			if r, out := sh(t, sb, "echo x > u; chmod 4755 u; stat -c %a u"); out.stdout != "644\n" {
				t.Errorf("set-user-ID: %+v %+v", r, out)
			}
			for _, d := range []string{overlay, dir, filepath.Dir(file), test.c.Workspace} {
				if d != "" {
					noGroupIDs(t, d)
				}
			}
		})
	}
}

// A blank may set the bit. A sandbox that claims it with a writable directory of the host may not.
func TestGroupIDsOfClaimedSandboxes(t *testing.T) {
	l := newPooledLauncher(t, 1)
	overlay, dir := ownedDir(t, 1000, "x"), ownedDir(t, 1000, "x")
	for name, test := range map[string]struct {
		c    spec.Config
		want string
	}{
		"no directory":  {spec.Config{}, groupIDsSet},
		"overlay":       {spec.Config{Overlays: []string{overlay}, Cwd: overlay}, groupIDsSet},
		"workspace":     {spec.Config{Workspace: dir}, groupIDsRefused},
		"writable bind": {spec.Config{Binds: []spec.Bind{{Source: dir, Target: "/d", Writable: true}}}, groupIDsRefused},
	} {
		sb := claimed1(t, l, inMemory("", test.c))
		if _, out := sh(t, sb, setGroupIDs); out.stdout != test.want {
			t.Errorf("%s: %+v", name, out)
		}
		r, err := record.Read(l.Dir(sb.session.ID))
		if err != nil || r.GroupIDs != (test.want == groupIDsSet) {
			t.Errorf("%s: the record says %v: %v", name, r.GroupIDs, err)
		}
		noGroupIDs(t, dir)
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A sandbox that is up gets its first workspace only if none of its processes may set the bit.
// Later commands may not, and processes of theirs stand in no second workspace's way.
func TestGroupIDsAreWithheldBeforeAWorkspace(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "late", spec.Config{})
	first, second := ownedDir(t, 1000, "x"), ownedDir(t, 1000, "x")
	if _, out := sh(t, sb, "cd /tmp; "+setGroupIDs); out.stdout != groupIDsSet {
		t.Errorf("before: %+v", out)
	}
	running, _ := startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}, Cwd: "/tmp"})
	err := sb.SetWorkspace(t.Context(), first, Sources{})
	if !errors.Is(err, fault.ErrBusy) || !strings.Contains(err.Error(), `("sleep"); end these processes first`) {
		t.Errorf("beside a process: %v", err)
	}
	if entries, err := os.ReadDir(first); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	if err := running.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sb.SetWorkspace(t.Context(), first, Sources{}); err != nil {
		t.Fatal(err)
	}
	if _, out := sh(t, sb, setGroupIDs); out.stdout != groupIDsRefused {
		t.Errorf("after: %+v", out)
	}
	noGroupIDs(t, first)
	startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}, Cwd: "/tmp"})
	if err := sb.SetWorkspace(t.Context(), second, Sources{}); err != nil {
		t.Errorf("the second workspace: %v", err)
	}
}
