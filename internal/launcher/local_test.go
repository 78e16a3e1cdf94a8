package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestLocalSaysThatNothingIsIsolated(t *testing.T) {
	workspace := filepath.Join(t.TempDir(), "made", "with", "parents")
	r, err := Local(t.Context(), spec.Config{Workspace: workspace, Env: map[string]string{"A": "b"}},
		Command{Args: []string{"sh", "-c", "pwd; echo $A; exit 5"}, Capture: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != spec.StatusExited || r.ExitCode != 5 || string(r.Stdout) != workspace+"\nb\n" {
		t.Errorf("got %+v", r)
	}
	if r.Isolation != spec.IsolationNone || r.Limits.Memory != spec.Unavailable {
		t.Errorf("isolation %s, memory %s", r.Isolation, r.Limits.Memory)
	}
}

func TestLocalTimeoutEndsTheProcessGroup(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	r, err := Local(t.Context(), spec.Config{Timeout: spec.Duration(300 * time.Millisecond)},
		Command{Args: []string{"sh", "-c", "echo out; sleep 1000 & echo $! > " + pids + "; wait"}, Capture: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != spec.StatusTimedOut || r.ExitCode != spec.ExitTimedOut || string(r.Stdout) != "out\n" {
		t.Errorf("got %+v", r)
	}
	text, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	waitUntilGone(t, strings.TrimSpace(string(text)))
}

// waitUntilGone waits for a process that was killed but is somebody else's to
// reap.
func waitUntilGone(t *testing.T, pid string) {
	t.Helper()
	for range 200 {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %s is still there", pid)
}

func TestLocalTellsSignalsApart(t *testing.T) {
	r, err := Local(t.Context(), spec.Config{}, Command{Args: []string{"sh", "-c", "kill -USR1 $$"}})
	if err != nil || r.Status != spec.StatusSignaled || r.ExitCode != 128+int(unix.SIGUSR1) {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestLocalRefusesWhatItCannotKeep(t *testing.T) {
	tests := map[string]struct {
		config  spec.Config
		command Command
	}{
		"rootfs":   {spec.Config{Rootfs: "/"}, Command{Args: []string{"true"}}},
		"binds":    {spec.Config{Binds: []spec.Bind{{Source: "/a", Target: "/b"}}}, Command{Args: []string{"true"}}},
		"limits":   {spec.Config{Limits: spec.Limits{Memory: 1 << 30}}, Command{Args: []string{"true"}}},
		"network":  {spec.Config{Network: spec.NetworkNone}, Command{Args: []string{"true"}}},
		"user":     {spec.Config{User: &spec.User{}}, Command{Args: []string{"true"}}},
		"cwd":      {spec.Config{Cwd: "/"}, Command{Args: []string{"true"}}},
		"hostname": {spec.Config{Hostname: "box"}, Command{Args: []string{"true"}}},
		"seccomp":  {spec.Config{Seccomp: "strict"}, Command{Args: []string{"true"}}},
		"terminal": {spec.Config{}, Command{Args: []string{"true"}, Terminal: &agent.Winsize{}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Local(t.Context(), test.config, test.command); err == nil {
				t.Error("it ran")
			}
		})
	}
}

func TestLocalNotRunIsToldApart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "not-executable")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, code := range map[string]int{"no-such-command": 127, "/no/such/file": 127, file: 126} {
		_, err := Local(t.Context(), spec.Config{}, Command{Args: []string{name}})
		var notRun *NotRunError
		if !errors.As(err, &notRun) || notRun.Code != code {
			t.Errorf("%s: got %v, want code %d", name, err, code)
		}
	}
}
