package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// stagePeer has the test binary be a program of an ordinary user's, who has a
// launcher make a sandbox over a directory, and applies the changes itself.
const (
	stagePeer  = "peer"
	peerSocket = "INTEGRATION_PEER_SOCKET"
	peerTree   = "INTEGRATION_PEER_TREE"
	peerScript = "INTEGRATION_PEER_SCRIPT"
)

func peerMain() int {
	if err := reviewAsPeer(context.Background(), os.Getenv(peerSocket), os.Getenv(peerTree), os.Getenv(peerScript)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func reviewAsPeer(ctx context.Context, socket, tree, script string) (err error) {
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: socket})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	box, err := m.Create(ctx, sandbox.Config{Overlays: []string{tree}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	if r, err := box.Exec(ctx, sandbox.Command{Args: []string{"sh", "-euc", script, tree}}); err != nil || !r.OK() {
		return errors.Join(err, fmt.Errorf("%+v", r))
	}
	changes, err := box.Changes(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, changes.Close()) }()
	for c, err := range changes.List(sandbox.ListOptions{}) {
		if err != nil {
			return err
		}
		if c.Kind != sandbox.Deleted && c.UID != 1000 {
			return fmt.Errorf("%s belongs to %d inside", c.Path, c.UID)
		}
		fmt.Println(c.Kind, strings.TrimPrefix(c.Path, tree+"/"))
	}
	// What was handed out is for reading.
	if f, err := os.OpenFile(filepath.Join(tree, "private", "x"), os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		f.Close()
		return errors.New("the host's tree has a directory that was not applied")
	}
	_, err = changes.Apply(ctx, sandbox.ApplyOptions{})
	return err
}

// newPeer returns the home of an ordinary user, and a function that has this user run a script in a sandbox
// and apply the changes.
func newPeer(t *testing.T) (home string, peer func(script string) result) {
	t.Helper()
	s := newSandboxes(t)
	home = newHome(t)
	dir := filepath.Dir(home)
	for above := dir; strings.HasPrefix(above, os.TempDir()+"/"); above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	rules := filepath.Join(dir, "rules.json")
	if err := os.WriteFile(rules, fmt.Appendf(nil, `{"peers":[{"user":4242,"workspaces":[%q]}]}`, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	l := s.launcher(filepath.Join(dir, "s"), "--mode", "0666", "--rules", rules)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "peer") // the test's own is where only root gets
	if out, err := exec.Command("cp", self, program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return home, func(script string) result {
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), stageVariable+"="+stagePeer, peerSocket+"="+l.socket, peerTree+"="+home, peerScript+"="+script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4242, Gid: 4242}}
		return run(t, cmd)
	}
}

// The kernel shows this user no attribute of a renamed directory.
func TestAnOrdinaryUserAppliesARename(t *testing.T) {
	home, peer := newPeer(t)
	got := peer(`cd "$0"; python3 -c 'import os; os.rename("src", "lib"); os.rename("old/sub", "lib/sub")'`)
	if want := "created lib\ncreated lib/deep\ncreated lib/deep/file\ncreated lib/main.go\ncreated lib/sub\ncreated lib/sub/b\ndeleted old/sub\ndeleted src\n"; got != (result{0, want, ""}) {
		t.Errorf("%+v", got)
	}
	if content(t, filepath.Join(home, "lib/deep/file")) != "deep\n" || exists(filepath.Join(home, "src")) {
		t.Error("not applied")
	}
}

// The launcher reads files that the client may not read. The client writes the files of the host, with its own
// rights.
func TestAnOrdinaryUserAppliesWithItsOwnRights(t *testing.T) {
	home, peer := newPeer(t)
	before := snapshotOf(t, home)
	got := peer(everyChange)
	if got.code != 0 || strings.Count(got.stdout, "\n") != 17 || !strings.Contains(got.stdout, "modified old\n") {
		t.Fatalf("%+v", got)
	}
	after := snapshotOf(t, home)
	if changed := differing(before, after); !slices.Contains(changed, "old/a") || !slices.Contains(changed, "private") {
		t.Errorf("applied: %q", changed)
	}
	for path, is := range after {
		if !strings.Contains(is, `"uid":4242`) {
			t.Errorf("%s: %s", path, is)
		}
	}
	// What the user may not write, it may not apply either.
	if err := errors.Join(os.Chown(filepath.Join(home, "src"), 0, 0), os.Remove(filepath.Join(home, "src/new"))); err != nil {
		t.Fatal(err)
	}
	before = snapshotOf(t, home)
	got = peer(everyChange)
	if now := snapshotOf(t, home); got.code == 0 || len(differing(before, now)) > 0 {
		t.Errorf("%+v, and changed: %q", got, differing(before, now))
	}
	if _, err := os.Stat(filepath.Join(home, "src/new")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
