package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A testBox has the mounts, the store and the record of a sandbox, and a frozen process that holds them as PID 1 does. The sandbox
// counts as paused, so nothing has to stop its processes. The rest of a sandbox is missing: the container and the agent.
type testBox struct {
	*Files
	store *os.File
}

// newTestBox makes one with overlays, writable binds and a storage.
func newTestBox(t *testing.T, c spec.Config) *testBox {
	t.Helper()
	testhost.NeedRoot(t, "mounts and cgroups")
	if reason := testhost.LinuxBefore(t, 6, 15); reason != "" {
		t.Skip(reason)
	}
	k := newTestKeeper(t)
	thread, err := mountns.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer thread.Stop()
	top, root := t.TempDir(), t.TempDir()
	init := exec.Command("sleep", "1000")
	if err := thread.Do(func() error {
		if err := mountBox(top, root, c); err != nil {
			return err
		}
		detached, err := unix.OpenTree(unix.AT_FDCWD, top, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return err
		}
		store := os.NewFile(uintptr(detached), top)
		defer store.Close()
		init.ExtraFiles = []*os.File{4: store} // descriptor 7
		return errors.Join(enterRoot(root), init.Start())
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = init.Process.Kill(); _ = init.Wait() })
	id, err := process.Of(init.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ids := []specs.LinuxIDMapping{{Size: spec.IDs}}
	c.User = &spec.User{}
	r := record.Record{Version: record.FormatVersion, Init: id, IDBase: spec.IDs, UIDMappings: ids, GIDMappings: ids, Config: c}
	for i, path := range c.Overlays {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		r.Trees = append(r.Trees, record.Tree{Path: path, Layers: []int{i}, Since: record.Now(), OnDisk: true, Device: st.Dev, Inode: st.Ino})
	}
	if c.Storage == spec.StorageDisk {
		r.Image = "own" + record.ImageEnd
		testhost.WriteFile(t, k.ImagePath(r.Image), "the store")
	}
	box := record.NewSandbox(k.Roots, "box", frozenGroup(t, init.Process), r)
	t.Cleanup(box.CloseState)
	if err := os.MkdirAll(box.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	store, err := record.OpenStore(id)
	if err := errors.Join(err, box.Keep(r)); err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, store)
	if !box.Paused() {
		t.Fatal("the sandbox is not paused")
	}
	return &testBox{k.Files(box, nil), store}
}

// frozenGroup freezes a process in a cgroup of its own. The test kills the process.
func frozenGroup(t *testing.T, p *os.Process) *cgroups.Group {
	t.Helper()
	host, err := cgroups.Probe()
	if err != nil {
		t.Fatal(err)
	}
	path, hierarchy := fmt.Sprintf("/overlay-test-%d-%d", os.Getpid(), p.Pid), "/sys/fs/cgroup"
	if host.Mode != cgroups.V2 {
		hierarchy += "/freezer"
	}
	group, err := host.Open(path)
	if err == nil {
		err = os.Mkdir(hierarchy+path, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(group.Kill(ctx), group.Delete(ctx)); err != nil {
			t.Error(err)
		}
	})
	procs := filepath.Join(hierarchy+path, "cgroup.procs")
	if err := errors.Join(os.WriteFile(procs, []byte(strconv.Itoa(p.Pid)), 0), group.Freeze(t.Context())); err != nil {
		t.Fatal(err)
	}
	return group
}

// mountBox mounts a store at top. At root it mounts a root with the places of a sandbox: the root of the host below a layer.
func mountBox(top, root string, c spec.Config) error {
	overlay := func(at, lower, upper string) error {
		err := errors.Join(os.MkdirAll(upper+"/data", 0o755), os.Mkdir(upper+"/work", 0o755), os.MkdirAll(at, 0o755))
		if err != nil {
			return err
		}
		return unix.Mount("overlay", at, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%[2]s/data,workdir=%[2]s/work", lower, upper))
	}
	bind := func(at, source string) error {
		return errors.Join(os.MkdirAll(source, 0o755), os.MkdirAll(root+at, 0o755), unix.Mount(source, root+at, "", unix.MS_BIND, ""))
	}
	if err := errors.Join(unix.Mount("tmpfs", top, "tmpfs", 0, ""), overlay(root, "/", top+"/root")); err != nil {
		return err
	}
	errs := []error{bind(spec.WorkspacePath, top+"/area/workspace"), bind(spec.HomePath, top+"/area/home"), bind("/proc", "/proc"), bind("/dev", "/dev")}
	for i, path := range c.Overlays {
		errs = append(errs, overlay(root+path, path, fmt.Sprintf("%s/layer/%d", top, i)))
	}
	for _, b := range c.Binds {
		errs = append(errs, bind(b.Target, b.Source))
	}
	return errors.Join(errs...)
}

func enterRoot(root string) error {
	return errors.Join(unix.Chdir(root), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/"))
}

// run runs a shell line in the workspace, as the thread sees the workspace.
func run(thread *mountns.Thread, line string) (out string, err error) {
	err = thread.Do(func() error {
		cmd := exec.Command("sh", "-c", line)
		cmd.Dir = spec.WorkspacePath
		text, err := cmd.CombinedOutput()
		out = string(text)
		return err
	})
	return out, err
}

// sh is the output of a shell line in the workspace.
func (b *testBox) sh(t *testing.T, line string) string {
	t.Helper()
	thread, err := mountns.Enter(b.Init())
	if err != nil {
		t.Fatal(err)
	}
	defer thread.Stop()
	out, err := run(thread, line)
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return out
}

// transact runs a shell line as a transaction, which then joins.
func (b *testBox) transact(t *testing.T, line string) error {
	t.Helper()
	tx, err := b.Begin(t.Context(), b.Current())
	if err != nil {
		return err
	}
	if out, err := run(tx.Thread, line); err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return settle(t, tx)
}

// settle has a transaction join. The error has the reason of the result.
func settle(t *testing.T, tx *Transaction) error {
	t.Helper()
	r := spec.Result{Status: spec.StatusExited}
	if err := tx.Settle(t.Context(), &r, func(f func() error) error { return f() }); err != nil {
		t.Fatal(err)
	}
	if len(r.Notes) > 0 {
		t.Errorf("the notes are %q", r.Notes)
	}
	if !r.OK() {
		return errors.New(r.Reason)
	}
	return nil
}
