package record

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// identity is the identity of a process.
func identity(t *testing.T, pid int) process.ID {
	t.Helper()
	id, err := process.Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// dead is the identity of a process that has ended.
func dead(t *testing.T) process.ID {
	t.Helper()
	id := identity(t, os.Getpid())
	id.Start += 2
	return id
}

// newBox is a sandbox with a directory and a record. This process is its PID 1.
func newBox(t *testing.T) *Sandbox {
	t.Helper()
	in := Roots{State: t.TempDir()}
	if err := os.MkdirAll(in.Dir("box"), 0o700); err != nil {
		t.Fatal(err)
	}
	box := NewSandbox(in, "box", nil, Record{Version: FormatVersion, Init: identity(t, os.Getpid())})
	if err := box.Keep(box.Current()); err != nil {
		t.Fatal(err)
	}
	return box
}

// Too few descriptors do not show that a sandbox is gone.
func TestASandboxIsPresentIfItsRecordCannotBeRead(t *testing.T) {
	box := newBox(t)
	var present bool
	testhost.WithFreeDescriptors(t, 0, func() { present = box.Present() })
	if !present || !box.Present() {
		t.Errorf("present: %t without descriptors, then %t", present, box.Present())
	}
	next := box.Current()
	next.Init.Start++
	if err := next.Write(box.Path()); err != nil {
		t.Fatal(err)
	}
	if box.Present() {
		t.Error("a sandbox counts as present when another one has its id")
	}
	if err := os.RemoveAll(box.Path()); err != nil {
		t.Fatal(err)
	}
	if box.Present() {
		t.Error("a removed sandbox counts as present")
	}
}

// Each process has a copy of the record, which another process can replace.
func TestARecordThatAnotherProcessHasWrittenIsTaken(t *testing.T) {
	box := newBox(t)
	at := func() Version {
		t.Helper()
		v, err := VersionOf(box.Path())
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if !box.IsAt(at()) {
		t.Error("the record is not the one that was kept")
	}
	next := box.Current()
	next.Join = &Join{}
	if err := next.Write(box.Path()); err != nil {
		t.Fatal(err)
	}
	if box.IsAt(at()) || box.Current().Join != nil || box.onDisk().Join == nil {
		t.Error("the record of the other process counts as known")
	}
	if !box.Refresh(next, at()) || !box.IsAt(at()) || box.Current().Join == nil {
		t.Error("the record of the other process is not taken")
	}
	next.Init.Start++
	if box.Refresh(next, at()) || box.Init() == next.Init {
		t.Error("the record of another sandbox is taken")
	}
	if _, err := VersionOf(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a record: %v", err)
	}
}

// The end of a sandbox tells more than the error of its agent.
func TestTheReasonOfASilentAgent(t *testing.T) {
	ends := func(change func(next *Record)) func(box *Sandbox) error {
		return func(box *Sandbox) error {
			next := box.Current()
			change(&next)
			return box.Keep(next)
		}
	}
	for name, c := range map[string]struct {
		change func(box *Sandbox) error
		want   error
	}{
		"removed":             {func(box *Sandbox) error { return os.RemoveAll(box.Path()) }, fault.ErrNotFound},
		"ended":               {ends(func(next *Record) { next.Init = dead(t) }), fault.ErrNotRunning},
		"its owner has ended": {ends(func(next *Record) { next.Tied, next.Owner = true, dead(t) }), fault.ErrNotRunning},
	} {
		box := newBox(t)
		if err := c.change(box); err != nil {
			t.Fatal(err)
		}
		if err := box.Why(t.Context(), errors.New("another reason")); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := box.Why(ctx, errors.New("another reason")); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, and the caller has given up: %v", name, err)
		}
	}
}

// The state follows from PID 1 and, for a tied sandbox, from its owner.
func TestTheStateOfASandbox(t *testing.T) {
	self, ended := identity(t, os.Getpid()), dead(t)
	for name, c := range map[string]struct {
		r      Record
		paused bool
		state  spec.State
		stays  bool
	}{
		"up":             {Record{Init: self, Owner: ended}, false, spec.StateRunning, true},
		"paused":         {Record{Init: self}, true, spec.StatePaused, true},
		"stopped":        {Record{Init: ended, Owner: self}, true, spec.StateStopped, false},
		"tied":           {Record{Init: self, Tied: true, Owner: self}, false, spec.StateRunning, true},
		"tied, stopped":  {Record{Init: ended, Tied: true, Owner: self}, false, spec.StateStopped, true},
		"tied to an end": {Record{Init: self, Tied: true, Owner: ended}, false, spec.StateStopped, false},
	} {
		i := c.r.Info("box", func() bool { return c.paused })
		if i.State != c.state || c.r.Stays() != c.stays || (i.Pid != 0) != (c.state != spec.StateStopped) {
			t.Errorf("%s: %+v, stays %t", name, i, c.r.Stays())
		}
	}
	r := fullRecord()
	if i := r.Info("box", func() bool { return false }); i.ID != "box" || i.From != r.From || i.Owner != r.UID || !i.Created.Equal(r.Created) || len(i.NetworkAddresses) != 2 {
		t.Errorf("got %+v", i)
	}
}

// A directory without a record is of a sandbox that is being made, or a rest.
func TestADirectoryWithoutARecord(t *testing.T) {
	in := Roots{State: t.TempDir()}
	dir, err := statedir.Make(in.Sandboxes(), "box")
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string, pending, rest bool) {
		t.Helper()
		if IsPending(dir.Path) != pending || IsRest(dir.Path) != rest || !Has(in.State, "box") {
			t.Errorf("%s: pending %t, a rest %t", when, IsPending(dir.Path), IsRest(dir.Path))
		}
	}
	check("held", true, false)
	dir.Release()
	check("released", false, true)
	if err := (Record{Version: FormatVersion, Init: dead(t)}).Write(dir.Path); err != nil {
		t.Fatal(err)
	}
	check("with a record", false, false)
	for _, id := range []string{"", ".", "..", "other", "../@sandboxes/box", "box/owner"} {
		if Has(in.State, id) {
			t.Errorf("there is a sandbox %q", id)
		}
	}
	if IsRest(in.Dir("other")) || IsPending(in.Dir("other")) {
		t.Error("a missing directory is pending or a rest")
	}
}

// Several processes count what limits have done.
func TestRefusalsAddUp(t *testing.T) {
	box := newBox(t)
	if r, err := box.Refusals(); err != nil || r != (Refusals{}) {
		t.Errorf("at first: %+v, %v", r, err)
	}
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			if err := box.AddRefusals(Refusals{OOMKills: 1, ForksRefused: 100}); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	other := NewSandbox(box.Roots, box.ID, nil, Record{})
	if r, err := other.Refusals(); err != nil || r != (Refusals{OOMKills: 20, ForksRefused: 2000}) {
		t.Errorf("afterwards: %+v, %v", r, err)
	}
	if err := os.RemoveAll(box.Path()); err != nil {
		t.Fatal(err)
	}
	if err := box.AddRefusals(Refusals{OOMKills: 1}); !errors.Is(err, fs.ErrNotExist) || statedir.Exists(box.Path()) {
		t.Errorf("of a removed sandbox: %v", err)
	}
}

// The path of a state root that does not exist yet is resolved, too.
func TestAMissingStateRootHasOnePath(t *testing.T) {
	dir := t.TempDir()
	testhost.Symlink(t, dir, filepath.Join(dir, "link"))
	for given, want := range map[string]string{"link/a/b": "a/b", "link": "", "a/../link/c": "c"} {
		if got, err := ResolveState(filepath.Join(dir, given)); err != nil || got != filepath.Join(dir, want) {
			t.Errorf("%s: %s, %v", given, got, err)
		}
	}
}

// Each state root has names of its own.
func TestNamesLeadToTheirSandbox(t *testing.T) {
	in, other := Roots{State: "/run/a"}, Roots{State: "/run/b"}
	names := in.NewNames("box")
	if id, ours := in.CgroupID(names.Cgroup); id != "box" || !ours {
		t.Errorf("the cgroup leads to %q, %t", id, ours)
	}
	if id, ours := other.CgroupID(names.Cgroup); ours {
		t.Errorf("the cgroup of another state root leads to %q", id)
	}
	if again := in.NewNames("box"); again == names || again.CgroupPath() == names.CgroupPath() {
		t.Errorf("twice the names %+v", names)
	}
	in.Data = t.TempDir()
	if images, err := in.Images(); err != nil || images != nil {
		t.Errorf("without a directory there are the images %q, %v", images, err)
	}
	own := in.ImagePrefix("box") + "x" + ImageEnd
	for _, name := range []string{own, other.ImagePrefix("box") + "x" + ImageEnd, in.ImagePrefix("box") + "x"} {
		testhost.WriteFile(t, in.ImagePath(name), "")
	}
	if images, err := in.Images(); err != nil || len(images) != 1 || images[0] != own {
		t.Errorf("there are the images %q, %v", images, err)
	}
}

// holding is a process with open files, by descriptor.
func holding(t *testing.T, files map[int]*os.File) process.ID {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = make([]*os.File, 8)
	for number, f := range files {
		cmd.ExtraFiles[number-3] = f
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return identity(t, cmd.Process.Pid)
}

func openDir(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, f)
	return f
}

// PID 1 of an older release holds no file of the store at descriptor 8, or a socket.
func TestStoreIsTakenOfPID1(t *testing.T) {
	dir := t.TempDir()
	top, path, other := openDir(t, dir, 0), openDir(t, dir, unix.O_PATH), openDir(t, "/", 0)
	whole := holding(t, map[int]*os.File{7: path, 8: top})
	store, err := OpenStore(whole)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	testhost.WriteFile(t, filepath.Join(dir, "file"), "")
	var st unix.Stat_t
	if err := unix.Fstatat(int(store.Fd()), "file", &st, 0); err != nil {
		t.Errorf("the store has no file: %v", err)
	}
	for _, open := range []func() (*os.File, error){
		func() (*os.File, error) { return OpenTop(whole, store) }, func() (*os.File, error) { return TakeStore(whole) },
	} {
		f, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Fstatat(int(f.Fd()), "file", &st, 0); err != nil {
			t.Errorf("%s has no file: %v", f.Name(), err)
		}
		f.Close()
	}
	for name, files := range map[string]map[int]*os.File{
		"none": nil, "open for its path alone": {8: path}, "another directory": {8: other},
	} {
		if f, err := OpenTop(holding(t, files), store); !errors.Is(err, ErrNoSyncFile) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
	ended := whole
	ended.Start += 2
	for name, open := range map[string]func() (*os.File, error){
		"OpenTop": func() (*os.File, error) { return OpenTop(ended, store) }, "OpenStore": func() (*os.File, error) { return OpenStore(ended) },
		"TakeStore": func() (*os.File, error) { return TakeStore(ended) }, "OpenMounts": func() (*os.File, error) { return OpenMounts(ended) },
		"OpenNetwork": func() (*os.File, error) { return OpenNetwork(ended) },
		"OpenShown":   func() (*os.File, error) { return OpenShown(ended, "/", ToRead) },
	} {
		if f, err := open(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s of a process that has ended: %v, %v", name, f, err)
		}
	}
}

// The sandbox chooses the links in a path. No part of the path is a link.
func TestAPathStaysInItsRoot(t *testing.T) {
	dir := t.TempDir()
	root := openDir(t, dir, unix.O_PATH)
	testhost.WriteFile(t, filepath.Join(dir, "d/file"), "inside")
	testhost.Symlink(t, "/d", filepath.Join(dir, "link"))
	testhost.Symlink(t, "/etc", filepath.Join(dir, "out"))
	testhost.Symlink(t, "d/file", filepath.Join(dir, "last"))
	for path, want := range map[string]error{
		"/d/file": nil, "/../../d/file": nil, "/link/file": unix.ELOOP, "/out/passwd": unix.ELOOP, "/last": unix.ELOOP, "/none": os.ErrNotExist,
	} {
		f, err := OpenRooted(root, path, ToRead)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		if err == nil {
			f.Close()
		}
	}
}
