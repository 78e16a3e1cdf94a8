package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func TestReaderSeesOldOrNew(t *testing.T) {
	testhost.Concurrent(t)
	sb := create(t, newIsolated(t), sandbox.Config{})
	ctx, files := t.Context(), sb.Files()
	write := func(letter string) error {
		return files.WriteFile(ctx, "f", []byte(strings.Repeat(letter, 1<<20)), 0o644)
	}
	if err := write("a"); err != nil {
		t.Fatal(err)
	}
	ctx2, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for n := 0; ctx2.Err() == nil; n++ {
			if err := write(string(rune('a' + n%2))); err != nil {
				t.Error(err)
			}
		}
	})
	r, err := sb.Run(ctx, `for i in $(seq 50); do s=$(tr -d a < f | wc -c); [ $s = 0 ] || [ $s = 1048576 ] || exit 9; done`)
	cancel()
	done.Wait()
	if err != nil || !r.OK() {
		t.Errorf("got %+v, %v", r, err)
	}
}

// What is done has the sandbox user's rights, and nobody else's.
func TestFilesHaveTheUsersRights(t *testing.T) {
	workspace := t.TempDir()
	sb := create(t, newIsolated(t), sandbox.Config{Workspace: workspace, User: &sandbox.User{UID: 1234, GID: 1234}})
	ctx, files := t.Context(), sb.Files()
	for _, name := range []string{"/etc/new", "/usr/bin/new", "/proc/1/environ", "/root/x"} {
		if err := files.WriteFile(ctx, name, []byte("x"), 0); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if _, err := files.ReadFile(ctx, "/proc/1/environ"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("PID 1's environment: %v", err)
	}
	if got, err := files.ReadFile(ctx, "/proc/self/status"); err != nil || !strings.Contains(string(got), "Uid:\t1234\t1234\t1234\t1234\nGid:\t1234\t1234\t1234\t1234\n") || !strings.Contains(string(got), "CapEff:\t0000000000000000\n") {
		t.Errorf("got %s, %v", got, err)
	}
	if err := files.WriteFile(ctx, "mine", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err := files.Stat(ctx, "mine"); err != nil || info.UID != 1234 || info.GID != 1234 {
		t.Errorf("got %+v, %v", info, err)
	}
	if r, err := sb.Run(ctx, "cat mine; stat -c %u:%g:%a mine"); err != nil || string(r.Stdout) != "x1234:1234:600\n" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Only regular files are read and written, and none is waited for.
func TestSpecialFilesAreRefused(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{})
	ctx, files := t.Context(), sb.Files()
	if r, err := sb.Run(ctx, "mkfifo fifo; ln -s fifo link"); err != nil || !r.OK() {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, name := range []string{"fifo", "link", "/dev/zero"} {
		if _, err := files.ReadFile(ctx, name); !errors.Is(err, sandbox.ErrNotRegular) {
			t.Errorf("read %s: %v", name, err)
		}
		if err := files.WriteFile(ctx, name, nil, 0); !errors.Is(err, sandbox.ErrNotRegular) {
			t.Errorf("write %s: %v", name, err)
		}
	}
	if info, err := files.Stat(ctx, "/dev/null"); err != nil || info.Mode.Type() != fs.ModeDevice|fs.ModeCharDevice {
		t.Errorf("got %+v, %v", info, err)
	}
}

func TestFileLimitsAreErrors(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{Limits: sandbox.Limits{FileSize: 1 << 20}})
	ctx, files := t.Context(), sb.Files()
	if err := files.WriteFile(ctx, "large", make([]byte, 2<<20), 0); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("got %v", err)
	}
	if err := files.WriteFile(ctx, "small", make([]byte, 1<<20), 0); err != nil {
		t.Error(err)
	}
	other := create(t, newIsolated(t), sandbox.Config{})
	if r, err := other.Run(ctx, "truncate -s $((64*1024*1024+1)) sparse"); err != nil || !r.OK() {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := other.Files().ReadFile(ctx, "sparse"); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("got %v", err)
	}
}

// callError tells a call's error, which has to come.
func callError(t *testing.T, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * testhost.Patience):
		t.Fatal("it hangs")
		return nil
	}
}

// What serves the files is killed and stopped by what runs in the sandbox: that is
// an error of what goes on, and the next call starts it anew.
func TestFilesSurviveTheirServersDeath(t *testing.T) {
	testhost.Concurrent(t)
	sb := create(t, newIsolated(t), sandbox.Config{})
	ctx, files := t.Context(), sb.Files()
	if err := files.WriteFile(ctx, "f", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	watch, err := files.Watch(ctx, ".")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	if r, err := sb.Run(ctx, "pkill -x -KILL sandbox-files"); err != nil || !r.OK() {
		t.Fatalf("%+v, %v", r, err)
	}
	err = callError(t, func() error { _, err := watch.Next(ctx); return err })
	if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "SIGKILL") {
		t.Errorf("the watch: %v", err)
	}
	if got, err := files.ReadFile(ctx, "f"); err != nil || string(got) != "x" {
		t.Errorf("got %q, %v", got, err)
	}
	const stop = `p=$(pgrep -x sandbox-files) && kill -STOP $p &&
		while grep -h ^State: /proc/$p/task/*/status | grep -qv 'T (stopped)'; do sleep 0.01; done`
	if r, err := sb.Run(ctx, stop); err != nil || !r.OK() {
		t.Fatalf("%+v, %v", r, err)
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := files.ReadFile(short, "f"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("of one that is stopped: %v", err)
	}
	if err := callError(t, func() error { _, err := files.ReadFile(ctx, "f"); return err }); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("of one that is stopped: %v", err)
	}
	if got, err := files.ReadFile(ctx, "f"); err != nil || string(got) != "x" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestFilesOfAPausedOrRemovedSandbox(t *testing.T) {
	testhost.Concurrent(t)
	m := newIsolated(t)
	sb := create(t, m, sandbox.Config{})
	ctx, files := t.Context(), sb.Files()
	if err := files.WriteFile(ctx, "f", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := sb.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		err := callError(t, func() error { _, err := files.ReadFile(ctx, "f"); return err })
		if !errors.Is(err, sandbox.ErrPaused) {
			t.Errorf("paused: %v", err)
		}
	}
	if err := sb.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := files.ReadFile(ctx, "f"); err != nil || string(got) != "x" {
		t.Errorf("resumed: %q, %v", got, err)
	}
	if err := m.Remove(ctx, sb.ID()); err != nil {
		t.Fatal(err)
	}
	err := callError(t, func() error { _, err := files.ReadFile(ctx, "f"); return err })
	if !errors.Is(err, sandbox.ErrNotFound) && !errors.Is(err, sandbox.ErrNotRunning) && !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("removed: %v", err)
	}
	testhost.Eventually(t, "it is known to be removed", func() bool { _, err = files.Stat(ctx, "f"); return errors.Is(err, sandbox.ErrNotFound) })
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := files.ReadFile(ctx, "f"); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// awaitEvent takes events until one is as wanted.
func awaitEvent(t *testing.T, w *sandbox.FileWatch, want sandbox.FileEvent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
	defer cancel()
	var seen []sandbox.FileEvent
	for {
		e, err := w.Next(ctx)
		if err != nil {
			t.Fatalf("wait for %+v: %v; there were %+v", want, err, seen)
		}
		if e == want {
			return
		}
		seen = append(seen, e)
	}
}

func TestWatchSaysThatEventsWereLost(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{})
	ctx, files := t.Context(), sb.Files()
	w, err := files.Watch(ctx, ".")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if r, err := sb.Run(ctx, "seq 20000 | xargs touch; mkdir last"); err != nil || !r.OK() {
		t.Fatalf("%+v, %v", r, err)
	}
	soon, cancel := context.WithTimeout(ctx, testhost.Patience)
	defer cancel()
	n := 0
	for {
		e, err := w.Next(soon)
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == sandbox.FileEventsLost {
			break
		}
		n++
	}
	// Of 40,000. Beside what who serves keeps there is what the kernel keeps for it
	// where it was slow (inotify(7), max_queued_events).
	if n < 1000 || n > 30_000 {
		t.Errorf("after %d events", n)
	}
	if err := files.Mkdir(ctx, "after", 0o755); err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, w, sandbox.FileEvent{Type: sandbox.FileCreated, Path: "/workspace/after", Dir: true})
}

// Links lead where they lead inside, whoever swaps them meanwhile.
func TestFilesDoNotLeaveTheSandbox(t *testing.T) {
	host := t.TempDir()
	canary := filepath.Join(host, "canary")
	if err := os.WriteFile(canary, []byte("untouched"), 0o666); err != nil {
		t.Fatal(err)
	}
	sb := create(t, newIsolated(t), sandbox.Config{})
	ctx, files := t.Context(), sb.Files()
	// The target exists outside only.
	script := fmt.Sprintf(`mkdir -p dir; echo inside > dir/canary
while :; do ln -sfn %s link; ln -sfn dir link; ln -sfn /proc/1/root%s link; ln -sfn ../../../../..%s link; done`, host, host, host)
	swapping, err := sb.Start(ctx, sandbox.Command{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	defer swapping.Close()
	read, written := 0, 0
	for n := 0; n < 10_000 || (read == 0 || written == 0) && n < 100_000; n++ {
		got, err := files.ReadFile(ctx, "link/canary")
		if err == nil && strings.Contains(string(got), "untouched") {
			t.Fatal("the canary was read")
		}
		if err == nil {
			read++
		}
		if files.WriteFile(ctx, "link/canary", []byte("inside"), 0) == nil {
			written++
		}
	}
	if got, err := os.ReadFile(canary); err != nil || string(got) != "untouched" || read == 0 || written == 0 {
		t.Errorf("the canary is %q, %v, after %d reads and %d writes that went well", got, err, read, written)
	}
	if entries, err := os.ReadDir(host); err != nil || len(entries) != 1 {
		t.Errorf("outside are %v, %v", entries, err)
	}
}

// A timeout of the configuration is one of commands.
func TestFilesOutliveTheTimeout(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{Timeout: sandbox.Duration(200 * time.Millisecond)})
	ctx, files := t.Context(), sb.Files()
	w, err := files.Watch(ctx, ".")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	late, cancel := context.WithTimeout(ctx, 600*time.Millisecond)
	defer cancel()
	if _, err := w.Next(late); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
