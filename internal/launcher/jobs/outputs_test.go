package jobs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// The number of the kept outputs has a bound. Output that a client has got gives way first.
func TestOutputsHaveABound(t *testing.T) {
	v := newTestSession(t)
	for i := range MaxOutputs {
		if err := os.MkdirAll(v.Told.detachedExec(execNumbered(i)).Dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.roomForOutput(t.Context(), 1000); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), fmt.Sprint(MaxOutputs)) {
		t.Errorf("one more: %v", err)
	}
	ago, old := time.Now().Add(-2*ToldLeast), v.Told.detachedExec(execNumbered(0)).Dir
	if err := os.Chtimes(old, ago, ago); err != nil {
		t.Fatal(err)
	}
	if err := v.roomForOutput(t.Context(), 1000); err != nil || statedir.Exists(old) {
		t.Errorf("in the place of an old one, which is there (%t): %v", statedir.Exists(old), err)
	}
}

// A command that runs takes twice its output limit, and a complete output takes its size.
func TestOutputHasAShareOfBytes(t *testing.T) {
	v := newTestSession(t)
	if _, is := errors.AsType[*fault.ConfigError](v.roomForOutput(t.Context(), 1<<60)); !is {
		t.Error("more than all outputs can have is no mistake of the caller")
	}
	const quarter = MaxOutputBytes / 4
	for i := range 2 {
		keep(t, v, execNumbered(i), execRecord{Version: execVersion, OutputLimit: quarter, Started: time.Now()})
	}
	if err := v.checkShare(1); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), fmt.Sprint(MaxOutputBytes)) || !strings.Contains(err.Error(), "attach") {
		t.Errorf("one byte more: %v", err)
	}
	v.Output.Taken[execNumbered(0)] = room{bytes: 1000, final: true}
	if err := v.checkShare(quarter - 500); err != nil {
		t.Errorf("the room of a complete output: %v", err)
	}
	if err := v.checkShare(quarter); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("more than a complete output has left: %v", err)
	}
	told := v.Told.detachedExec(execNumbered(9)).Dir
	testhost.WriteFile(t, filepath.Join(told, "stdout"), strings.Repeat("x", 100))
	if err := v.checkShare(quarter - 500); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("told output does not count: %v", err)
	}
	for i := range 2 {
		if err := os.RemoveAll(v.execDir(execNumbered(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.checkShare(quarter); err != nil || len(v.Output.Taken) > 0 {
		t.Errorf("after the ends %d execs are remembered, %v", len(v.Output.Taken), err)
	}
}

// Output that a client has got stays for a while, and its removal frees the space for all that have it open.
func TestToldOutputGoesLater(t *testing.T) {
	v := newTestSession(t)
	e := execNumbered(1)
	d := keep(t, v, e, execRecord{Version: execVersion})
	testhost.WriteFile(t, filepath.Join(d.Dir, "stdout"), "output")
	open, err := os.Open(filepath.Join(d.Dir, "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if told, err := v.Told.add(e, d); !told || err != nil {
		t.Fatalf("told %t, %v", told, err)
	}
	if told, err := v.Told.add(e, d); told || err != nil {
		t.Errorf("a second client has told %t, %v", told, err)
	}
	if v.isDetached(e) || statedir.Exists(d.Dir) {
		t.Error("clients can still attach")
	}
	// A sweep can have listed the exec before, and a deadline of the exec is another timer.
	if err := v.ForgetLost(t.Context(), e); err != nil {
		t.Error(err)
	}
	v.Disarm(e)
	checkTimers(t, v, 1)
	v.Told.drop(ToldLeast)
	if got, err := os.ReadFile(open.Name()); err == nil {
		t.Errorf("at its old place there is %q", got)
	}
	if OutputSize(v.Told.detachedExec(e).Dir) != 6 {
		t.Error("young output is gone")
	}
	ago := time.Now().Add(-ToldTime)
	if err := os.Chtimes(v.Told.detachedExec(e).Dir, ago, ago); err != nil {
		t.Fatal(err)
	}
	v.Told.timers.stop(v.Told.key(e)) // the launcher ends, and the next one goes on
	if err := v.Told.resume(); err != nil {
		t.Fatal(err)
	}
	testhost.Eventually(t, "old output goes", func() bool { return !statedir.Exists(v.Told.detachedExec(e).Dir) })
	if info, err := open.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("an open file of removed output: %+v, %v", info, err)
	}
	testhost.Eventually(t, "the timer goes", func() bool {
		v.all.Deadlines.Mu.Lock()
		defer v.all.Deadlines.Mu.Unlock()
		return len(v.all.Deadlines.All) == 0
	})
}

// An output without a byte needs no time to be read.
func TestToldOutputWithoutBytesGoesAtOnce(t *testing.T) {
	v := newTestSession(t)
	e := execNumbered(1)
	if told, err := v.Told.add(e, keep(t, v, e, execRecord{})); !told || err != nil {
		t.Fatalf("told %t, %v", told, err)
	}
	if err := v.Told.dropEmpty(e); err != nil || statedir.Exists(v.Told.detachedExec(e).Dir) {
		t.Errorf("the directory is there, %v", err)
	}
	checkTimers(t, v, 0)
}

// A removal frees the output of all commands for those that have it open.
func TestTruncateFreesAllOutputs(t *testing.T) {
	v := newTestSession(t)
	dirs := []string{v.execDir(execNumbered(1)), v.Told.detachedExec(execNumbered(2)).Dir}
	for _, dir := range dirs {
		testhost.WriteFile(t, filepath.Join(dir, "stdout"), "output")
		testhost.WriteFile(t, filepath.Join(dir, "stderr"), "errors")
	}
	testhost.WriteFile(t, filepath.Join(v.ExecsDir(), "other/stdout"), "no exec")
	if err := TruncateOutputs(v.Path()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if n := OutputSize(dir); n != 0 {
			t.Errorf("%s has %d bytes", dir, n)
		}
	}
	if n := OutputSize(filepath.Join(v.ExecsDir(), "other")); n != 7 {
		t.Errorf("another directory has %d bytes", n)
	}
	if err := TruncateOutputs(t.TempDir()); err != nil {
		t.Errorf("without commands: %v", err)
	}
}
