package server

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestAWorkspaceForALiveSandboxIsHeldToTheRule(t *testing.T) {
	testhost.NeedRoot(t, "directories of two users")
	mine, foreign, outside := t.TempDir(), t.TempDir(), t.TempDir()
	for dir, uid := range map[string]int{mine: 1001, foreign: 1002, outside: 1001} {
		if err := os.Chown(dir, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t, Rule{User: "1001", Workspaces: []string{mine, foreign}}, Rule{User: "1002"})
	c := w.client(t, 1001)
	box(t, c, "x")
	box(t, w.client(t, 1002), "theirs")
	for name, test := range map[string]struct {
		id, dir string
		err     error
	}{
		"mine":            {"x", mine, nil},
		"another's":       {"x", foreign, fault.ErrRefused},
		"outside":         {"x", outside, fault.ErrRefused},
		"another sandbox": {"theirs", mine, fault.ErrNotFound},
	} {
		if err := c.SetWorkspace(t.Context(), test.id, test.dir); !errors.Is(err, test.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b := w.core.box("x"); b.currentInfo().Config.Workspace != mine || b.from.UID != 1001 || b.from.Files[mine] == nil {
		t.Errorf("the launcher was asked for %q with %+v", b.currentInfo().Config.Workspace, b.from)
	}
	if err := w.client(t, 0).SetWorkspace(t.Context(), "x", outside); err != nil {
		t.Errorf("root: %v", err)
	}
	if err := c.SetWorkspace(t.Context(), "x", ""); err == nil || !strings.Contains(err.Error(), "without a directory") {
		t.Errorf("none: %v", err)
	}
}
