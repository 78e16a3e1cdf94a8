package launcher

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// lossySandbox is a sandbox with an overlay, on a small disk, that has been told that its
// write succeeded when the disk was full. On a busy host the kernel can write so early that
// the command is told: then there is another try.
func lossySandbox(t *testing.T) (l *Launcher, sb *Sandbox, r spec.Result) {
	t.Helper()
	for try := 1; ; try++ {
		l, host := newSmallLauncher(t, 80<<20)
		c := onDisk
		c.Overlays = []string{t.TempDir()}
		sb = createUp(t, l, "box", c)
		fillHost(t, host)
		r, out := sh(t, sb, "head -c 4m /dev/urandom > "+c.Overlays[0]+"/file")
		freeHost(t, host)
		if r.ExitCode == 0 {
			return l, sb, r
		}
		if !strings.Contains(out.stderr, "Read-only") && !strings.Contains(out.stderr, "Input/output") || try == 5 {
			t.Fatalf("%+v %s", r, out.stderr)
		}
	}
}

func checkTold(t *testing.T, what string, r spec.Result) {
	t.Helper()
	told := slices.ContainsFunc(r.Violations, func(v spec.Violation) bool {
		return v.Kind == "limit" && strings.Contains(v.Detail, "cannot be trusted") && strings.Contains(v.Detail, "down")
	})
	if !r.OK() || !r.Damaged || !told {
		t.Errorf("%s: %+v", what, r)
	}
}

// The disk has room again: a lost write stays lost.
func TestLostWritesAreToldByEveryLaterCommand(t *testing.T) {
	l, sb, r := lossySandbox(t)
	checkTold(t, "the command itself", r)
	r, _ = sh(t, sb, "true")
	checkTold(t, "the next one", r)
	for _, sync := range []bool{false, true} {
		var of *fault.SandboxError
		if err := sb.Verify(t.Context(), sync); !errors.Is(err, fault.ErrDamaged) || !errors.As(err, &of) || of.ID != "box" {
			t.Errorf("verify, sync %v: %v", sync, err)
		}
	}
	if err := sb.Snapshot(t.Context(), "snap"); !errors.Is(err, fault.ErrDamaged) {
		t.Errorf("snapshot: %v", err)
	}
	other, err := New(Dirs{State: l.State, Data: l.Data})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	info, err := other.Info(t.Context(), "box")
	if err != nil || !strings.Contains(strings.Join(info.Notes, "\n"), "cannot be trusted") {
		t.Errorf("another launcher: %q, %v", info.Notes, err)
	}
	all, err := other.List(t.Context(), nil)
	if err != nil || len(all) != 1 || !slices.Equal(all[0].Notes, info.Notes) {
		t.Errorf("list: %+v, %v", all, err)
	}
	if len(recordOf(t, l, "box").Notes) != 0 {
		t.Error("the note is in the record")
	}
}

// Nobody has looked before the disk had room again, and a command inside has asked for
// the error first.
func TestLostWriteIsFoundLater(t *testing.T) {
	l, host := newSmallLauncher(t, 80<<20)
	sb := createUp(t, l, "box", onDisk)
	fillHost(t, host)
	running, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", "head -c 4m /dev/urandom > file; sync -f file; echo done > /dev/shm/done; sleep 1000"}})
	defer running.Close()
	eventually(t, "the sandbox has seen the error", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root/dev/shm/done", sb.session.Init().Pid))
		return err == nil
	})
	freeHost(t, host)
	if err := sb.Verify(t.Context(), true); !errors.Is(err, fault.ErrDamaged) {
		t.Errorf("verify: %v", err)
	}
	r, _ := sh(t, sb, "true")
	checkTold(t, "a command", r)
}

// Nobody has asked PID 1 before it was killed: the image itself has kept the error.
func TestLostWriteIsKnownAfterPID1WasKilled(t *testing.T) {
	if reason := testhost.LinuxBefore(t, 6, 15); reason != "" {
		t.Skip(reason) // data_err=abort covers no more than the journal's data
	}
	l, host := newSmallLauncher(t, 80<<20)
	sb := createUp(t, l, "box", onDisk)
	fillHost(t, host)
	running, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", "head -c 4m /dev/urandom > file; sync; echo done > /dev/shm/done; sleep 1000"}})
	defer running.Close()
	eventually(t, "the write is lost", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root/dev/shm/done", sb.session.Init().Pid))
		return err == nil
	})
	killInit(t, sb)
	freeHost(t, host)
	if err := sb.Verify(t.Context(), true); !errors.Is(err, fault.ErrDamaged) {
		t.Errorf("verify: %v", err)
	}
	if err := sb.Verify(t.Context(), false); !errors.Is(err, fault.ErrDamaged) {
		t.Errorf("recorded: %v", err)
	}
}

func TestSoundSandboxIsTrusted(t *testing.T) {
	l := newTestLauncher(t)
	for _, storage := range []spec.Storage{spec.StorageDisk, spec.StorageMemory} {
		c := onDisk
		c.Storage = storage
		sb := createUp(t, l, "", c)
		if r, _ := sh(t, sb, "head -c 4m /dev/urandom > file"); r.Damaged || len(r.Notes) > 0 {
			t.Errorf("%s: %+v", storage, r)
		}
		if err := errors.Join(sb.Verify(t.Context(), true), sb.Verify(t.Context(), false)); err != nil {
			t.Errorf("%s: %v", storage, err)
		}
	}
}

// Descriptor 8 of PID 1 is open for reading, unlike descriptor 7.
func TestPID1HoldsTheTopOfTheStore(t *testing.T) {
	init := createUp(t, newTestLauncher(t), "", onDisk).session.Init()
	top, err := record.OpenStore(init)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	held, err := record.OpenTop(init, top)
	if err != nil {
		t.Fatal(err)
	}
	held.Close()
}

// A write of a snapshot that is lost later is found by its forks.
func TestForkOfADamagedSnapshotIsRefused(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", onDisk)
	if err := sb.Snapshot(t.Context(), "snap"); err != nil {
		t.Fatal(err)
	}
	fork := forkOf(t, l, "snap", onDisk)
	image := l.ImagePath(recordOf(t, l, "box").Image)
	l.tending.Wait() // for the sync of the snapshot
	if err := unix.Setxattr(image, "trusted.sandbox-runtime", fmt.Appendf(nil, "%-32s", "28 1"), 0); err != nil {
		t.Fatal(err)
	}
	if s, err := createFork(t, l, protocol.Create{Name: "fork", Config: onDisk, From: "snap"}, Sources{}); !errors.Is(err, fault.ErrDamaged) || !strings.Contains(err.Error(), "snapshot snap") {
		t.Errorf("%v, %v", s, err)
	}
	r, _ := sh(t, fork, "true")
	checkTold(t, "a fork that was there before", r)
	if err := fork.Verify(t.Context(), true); !errors.Is(err, fault.ErrDamaged) {
		t.Errorf("the fork: %v", err)
	}
}

// BenchmarkTellDamage is the extra cost of each command with sound storage on disk.
func BenchmarkTellDamage(b *testing.B) {
	sb := benchSandbox(b)
	p := &jobs.Process{Live: sb.session}
	if r := sb.session.Current(); r.Image == "" {
		b.Skip("needs storage on disk")
	}
	for b.Loop() {
		var r spec.Result
		if p.TellDamage(&r); r.Damaged || len(r.Notes) > 0 {
			b.Fatal(r)
		}
	}
}

// BenchmarkVerify is the wait of a reader of content if all is on disk already.
func BenchmarkVerify(b *testing.B) {
	sb := benchSandbox(b)
	for b.Loop() {
		if err := sb.Verify(b.Context(), true); err != nil {
			b.Fatal(err)
		}
	}
}
