package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// startDetached is detachedStart that may fail.
func startDetached(t *testing.T, sb *Sandbox, c spec.Command) error {
	t.Helper()
	c.Detached = true
	p, err := sb.Start(t.Context(), c, [3]*os.File{})
	if err != nil {
		return err
	}
	t.Cleanup(func() { p.Close() })
	return nil
}

func TestDetachedOutputHasAShareOfBytes(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	var config *fault.ConfigError
	if err := startDetached(t, sb, spec.Command{Args: []string{"true"}, OutputLimit: 1 << 60}); !errors.As(err, &config) {
		t.Errorf("1<<60 bytes: %v", err)
	}
	long := spec.Command{Args: []string{"sleep", "1000"}, OutputLimit: jobs.MaxOutputBytes / 4}
	first := detachedStart(t, sb, long)
	detachedStart(t, sb, long)
	small := spec.Command{Args: []string{"echo", "done"}, OutputLimit: 1000}
	err := startDetached(t, sb, small)
	if !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), fmt.Sprint(jobs.MaxOutputBytes)) || !strings.Contains(err.Error(), "attach") {
		t.Errorf("one more: %v", err)
	}
	// Nobody asks how it ends. What it has promised is free once its output is complete.
	if err := first.Signal(unix.SIGKILL, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is room again", func() bool { return startDetached(t, sb, small) == nil })
	if err := startDetached(t, sb, long); !errors.Is(err, fault.ErrUnavailable) { // but for what small keeps
		t.Errorf("as much as there was: %v", err)
	}
}

// A neighbour has the pipe of a command. After the command's end was told nothing writes
// to the output any more.
func TestToldOutputOfHeldPipesGrowsNoMore(t *testing.T) {
	testhost.Long(t)
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	p := detachedStart(t, sb, spec.Command{Args: []string{"sh", "-c", "echo $$; exec sleep 1000"}})
	var pid string
	eventually(t, "the command tells its pid", func() bool {
		pid = strings.TrimSpace(readOutput(t, p).stdout)
		return pid != ""
	})
	holder := detachedStart(t, sb, spec.Command{Args: []string{"sh", "-c", "exec 5>/proc/" + pid + "/fd/1; echo held; exec sleep 1000"}})
	eventually(t, "the pipe is held", func() bool { return readOutput(t, holder).stdout == "held\n" })
	if err := p.Signal(unix.SIGKILL, true); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the holder's output alone is written", func() bool {
		pids, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			t.Fatal(err)
		}
		writers := 0
		for _, dir := range pids {
			name, _ := os.ReadFile(dir + "/comm")
			status, _ := os.ReadFile(dir + "/status")
			if string(name) == "sandbox-output\n" && strings.Contains(string(status), fmt.Sprintf("PPid:\t%d\n", sb.session.Init().Pid)) {
				writers++
			}
		}
		return writers == 1
	})
}

// Output counts until it is removed. Its removal frees the space for all that have it
// open.
func TestRemovalFreesDetachedOutput(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	const size = 1 << 20
	write := spec.Command{Args: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero", size)}}
	ended, asked, old := detachedStart(t, sb, write), detachedStart(t, sb, write), detachedStart(t, sb, write)
	sizeOf := func(p *jobs.Process) int64 {
		stdout, _ := p.Output()
		info, err := stdout.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return max(0, info.Size()-streams.Start)
	}
	for _, p := range []*jobs.Process{asked, old} {
		if r, err := p.Wait(t.Context()); err != nil || !r.OK() {
			t.Fatalf("%+v, %v", r, err)
		}
		if n := jobs.OutputSize(filepath.Join(sb.session.Told.Dir(), p.ID())); n != size || sizeOf(p) != size {
			t.Errorf("after the end was told: %d bytes count, %d can be read", n, sizeOf(p))
		}
	}
	ago := time.Now().Add(-2 * jobs.ToldTime)
	if err := os.Chtimes(filepath.Join(sb.session.Told.Dir(), old.ID()), ago, ago); err != nil {
		t.Fatal(err)
	}
	elsewhere(t, sb) // its launcher takes the sandbox up
	eventually(t, "old output goes", func() bool { return sizeOf(old) == 0 })
	eventually(t, "the third has written", func() bool { return sizeOf(ended) == size })
	if sizeOf(asked) != size {
		t.Error("the output that was just told about is gone")
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*jobs.Process{ended, asked} {
		if n := sizeOf(p); n != 0 {
			t.Errorf("%d bytes are held after the sandbox's removal", n)
		}
	}
}

// A sweep may have listed a command, and ask the agent about it once it is forgotten.
func TestSweepLeavesOutputThatWasTold(t *testing.T) {
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	ctx, stop := context.WithCancel(t.Context())
	var sweeps sync.WaitGroup
	for range 3 {
		sweeps.Go(func() {
			for ctx.Err() == nil {
				_ = sb.session.Sweep(ctx) // stopped
			}
		})
	}
	defer sweeps.Wait()
	defer stop()
	for i := range 60 {
		p := detachedStart(t, sb, spec.Command{Args: []string{"echo", "kept"}})
		if r, err := p.Wait(t.Context()); err != nil || !r.OK() {
			t.Fatalf("command %d: %+v, %v", i, r, err)
		}
		if out := readOutput(t, p); out.stdout != "kept\n" {
			t.Fatalf("command %d: output %q", i, out)
		}
	}
}

// Others hold the pipes of commands that have ended. To find out that the output of such
// a command is not complete takes a while, and one that is complete comes after them.
func TestCompleteOutputIsFoundBehindOthers(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	most := int(jobs.SettleOutputsTime/jobs.AskOutputTime) + 5
	limit := int64(jobs.MaxOutputBytes / 2 / (most + 1))
	ended := map[string]*jobs.Process{}
	for range most {
		p := detachedStart(t, sb, spec.Command{Args: []string{"sh", "-c", "echo $$; exec sleep 1000"}, OutputLimit: limit})
		ended[p.ID()] = p
	}
	all, err := sb.session.DetachedExecs()
	if err != nil || len(all) != most {
		t.Fatalf("%d commands, %v", len(all), err)
	}
	holder := spec.Command{
		Args:        []string{"sh", "-c", `for pid in "$@"; do exec 5>/proc/$pid/fd/1; sleep 1000 & done; echo held; wait`, "sh"},
		OutputLimit: limit,
	}
	for _, e := range all[:most-1] {
		var pid string
		eventually(t, "the command tells its pid", func() bool {
			pid = strings.TrimSpace(readOutput(t, ended[e.String()]).stdout)
			return pid != ""
		})
		holder.Args = append(holder.Args, pid)
	}
	holding := detachedStart(t, sb, holder)
	eventually(t, "the pipes are held", func() bool { return readOutput(t, holding).stdout == "held\n" })
	for _, p := range ended {
		if err := p.Signal(unix.SIGKILL, true); err != nil {
			t.Fatal(err)
		}
	}
	small := spec.Command{Args: []string{"true"}, OutputLimit: limit}
	eventually(t, "there is room", func() bool { return startDetached(t, sb, small) == nil })
}
