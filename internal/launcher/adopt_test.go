package launcher

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// holdVariable has the test binary hold sandboxes in the directories it names.
const holdVariable = "TEST_HOLD_SANDBOXES"

// A holderReport is the report of the process that holds sandboxes.
type holderReport struct {
	Boxes, Detached []string
	Tied            string
}

const heldBoxes = 3

// TestHoldSandboxes is no test but the process that the next one kills.
func TestHoldSandboxes(t *testing.T) {
	dirs, ok := os.LookupEnv(holdVariable)
	if !ok {
		return
	}
	state, data, _ := strings.Cut(dirs, ":")
	l, err := New(Dirs{State: state, Data: data})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	start := func(sb *Sandbox, c spec.Command) *jobs.Process {
		p, err := sb.Start(ctx, c, [3]*os.File{})
		if err == nil {
			err = p.Started(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	var h holderReport
	var kept []any // with the connections, which a finalizer would close
	for range heldBoxes {
		sb, err := l.Create(ctx, protocol.Create{}, Sources{})
		if err != nil {
			t.Fatal(err)
		}
		h.Boxes = append(h.Boxes, sb.ID())
		kept = append(kept, sb, start(sb, spec.Command{Args: []string{"sh", "-c", "(setsid sleep 1001 &); sleep 1001"}}))
		h.Detached = append(h.Detached, start(sb, spec.Command{Args: []string{"sh", "-c", "echo here; sleep 1002"}, Detached: true}).ID())
	}
	tied, err := l.Create(ctx, protocol.Create{Tied: true}, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	h.Tied = tied.ID()
	if err := json.NewEncoder(os.Stdout).Encode(h); err != nil {
		t.Fatal(err)
	}
	for { // until it is killed
		time.Sleep(time.Hour)
		runtime.KeepAlive(append(kept, tied))
	}
}

func TestSandboxesOfAKilledProcessAreAdopted(t *testing.T) {
	l := newTestLauncher(t)
	holder := exec.Command(os.Args[0], "-test.run=^TestHoldSandboxes$")
	holder.Env = append(os.Environ(), holdVariable+"="+l.State+":"+l.Data)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	holder.Stderr = os.Stderr
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	killed := errors.Join(holder.Process.Kill())
	_ = holder.Wait() // killed
	var h holderReport
	if err := errors.Join(err, killed, json.Unmarshal(line, &h)); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	t.Cleanup(func() {
		for _, id := range h.Boxes {
			if err := l.Remove(context.Background(), id); err != nil {
				t.Error(err)
			}
		}
		checkNothingLeft(t, l)
	})
	for i, id := range h.Boxes {
		sb, err := l.Open(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer sb.Release()
		_, ps := sh(t, sb, "ps ax -o args")
		if strings.Contains(ps.stdout, "sleep 1001") || !strings.Contains(ps.stdout, "sleep 1002") {
			t.Errorf("%s has:\n%s", id, ps.stdout)
		}
		p, err := sb.Attach(t.Context(), h.Detached[i])
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "its output", func() bool { return readOutput(t, p).stdout == "here\n" })
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "the tied one has ended", func() bool {
		i, err := l.Info(t.Context(), h.Tied)
		return err == nil && i.State == spec.StateStopped
	})
	if pruned, err := l.Prune(t.Context()); err != nil || !slices.Equal(pruned, []string{h.Tied}) {
		t.Errorf("pruned %v, %v", pruned, err)
	}
}

func TestIdleSandboxesCostTheirLauncherNothing(t *testing.T) {
	testhost.Long(t)
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	createUp(t, l, "", spec.Config{}).Release() // what is opened once, and kept
	before := func() int { runtime.GC(); return runtime.NumGoroutine() }()
	files := openFiles(t)
	const boxes = 12
	ids := make([]string, boxes)
	var all sync.WaitGroup
	for i := range boxes {
		all.Go(func() {
			sb, err := l.Create(t.Context(), protocol.Create{}, Sources{})
			if err != nil {
				t.Error(err)
				return
			}
			defer sb.Release()
			ids[i] = sb.ID()
			if r, _ := sh(t, sb, "true"); !r.OK() {
				t.Errorf("got %+v", r)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	eventually(t, "nothing is held any more", func() bool {
		runtime.GC()
		return l.sessions.Len() == 0 && runtime.NumGoroutine() <= before && len(openFiles(t)) <= len(files)
	})
	for _, id := range ids {
		group, err := l.parts.Group(id)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "no leaf is left", func() bool {
			names, err := group.Leaves()
			return err == nil && len(names) == 0
		})
	}
	// They are there all the same, and go together.
	for _, id := range ids {
		all.Go(func() {
			sb, err := l.Open(t.Context(), id)
			if err != nil {
				t.Error(err)
				return
			}
			if r, _ := sh(t, sb, "true"); !r.OK() {
				t.Errorf("got %+v", r)
			}
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// A handle that is kept does not keep what only execs need.
func TestAnIdleHandleHoldsNoDescriptors(t *testing.T) {
	l := newTestLauncher(t)
	createUp(t, l, "", spec.Config{}).Release()
	files := openFiles(t)
	sb := createUp(t, l, "", spec.Config{})
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Errorf("got %+v", r)
	}
	eventually(t, "its descriptors are closed", func() bool { return len(openFiles(t)) <= len(files) })
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Errorf("got %+v", r)
	}
}

func TestExecsInARowKeepNothing(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	round := func() {
		sh(t, sb, "true")
		_, _, _ = tryPiped(t, sb, spec.Command{Args: []string{"no-such-command"}})
		p, read := startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		read()
		p = detachedStart(t, sb, spec.Command{Args: []string{"true"}})
		if r, err := p.Wait(t.Context()); err != nil || !r.OK() {
			t.Errorf("got %+v, %v", r, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	round()
	settled := func() (files, leaves, goroutines int) {
		eventually(t, "it is idle", func() bool {
			sb.session.Mu.Lock()
			defer sb.session.Mu.Unlock()
			return sb.session.Busy == 0
		})
		names, err := sb.session.Group.Leaves()
		if err != nil {
			t.Fatal(err)
		}
		return len(openFiles(t)), len(names), runtime.NumGoroutine()
	}
	files, _, goroutines := settled()
	for range 25 {
		round()
	}
	// Leaves that are ready, or wait to be removed, hold some.
	eventually(t, fmt.Sprintf("as little is held as before, %d files and %d goroutines", files, goroutines), func() bool {
		nowFiles, leaves, nowGoroutines := settled()
		return nowFiles <= files+11*jobs.MaxEnded && leaves <= 2*jobs.MaxEnded && nowGoroutines <= goroutines+2
	})
	if entries, err := os.ReadDir(sb.session.ExecsDir()); err != nil || len(entries) > 0 {
		t.Errorf("state left of %v, %v", entries, err)
	}
}

// The connection that ties it is kept, however long nothing runs.
func TestATiedSandboxStaysUpWhileItIsIdle(t *testing.T) {
	l := newTestLauncher(t)
	sb, err := l.Create(t.Context(), protocol.Create{Tied: true}, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Remove(context.Background(), sb.ID()); err != nil {
			t.Error(err)
		}
	}()
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Errorf("got %+v", r)
	}
	sb.Release()
	eventually(t, "it is idle", func() bool {
		names, err := sb.session.Group.Leaves()
		return err == nil && len(names) == 0
	})
	again, err := l.Open(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	if r, _ := sh(t, again, "true"); !r.OK() {
		t.Errorf("got %+v", r)
	}
}

func TestEndedInitsAreReaped(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	pid := sb.session.Init().Pid
	killInit(t, sb)
	dir := fmt.Sprintf("/proc/%d", pid)
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("it was reaped by others: %v", err)
	}
	createUp(t, l, "", spec.Config{})
	if _, err := os.Stat(dir); err == nil {
		t.Error("it is a zombie still")
	}
}
