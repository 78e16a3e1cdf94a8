package statedir

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

func TestHeldStateIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	s, err := Make(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Hold(dir, "a"); !errors.Is(err, ErrHeld) {
		t.Errorf("second hold: got %v, want errHeld", err)
	}
	if err := s.held.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Hold(dir, "a")
	if err != nil {
		t.Fatalf("hold after its owner is gone: %v", err)
	}
	if err := again.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := Hold(dir, "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("hold after remove: got %v, want not exist", err)
	}
}

func TestMakingAStateTwiceFails(t *testing.T) {
	dir := t.TempDir()
	s, err := Make(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Remove()
	if _, err := Make(dir, "a"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want exist", err)
	}
}

// Whoever makes a state must end up holding a directory that has its name,
// while others remove every one they can get hold of.
func TestStateSurvivesConcurrentRemoval(t *testing.T) {
	dir := t.TempDir()
	stop := make(chan struct{})
	var remover sync.WaitGroup
	remover.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if s, err := Hold(dir, "a"); err == nil {
				s.Remove()
			}
		}
	})
	for range 2000 {
		s, err := Make(dir, "a")
		if err != nil {
			t.Error(err)
			break
		}
		if err := lock(s.held); err != nil {
			t.Errorf("the directory that was made is not there: %v", err)
		}
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	remover.Wait()
}

// What a killed owner was about to start has its lock for a moment longer.
func TestADirectoryWhoseOwnerIsDeadIsWaitedFor(t *testing.T) {
	dead := exec.Command("sleep", "1000")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	description, err := process.Of(dead.Process.Pid)
	if err := errors.Join(err, dead.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = dead.Wait() // killed
	parent := t.TempDir()
	s, err := Make(parent, "sb")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := HoldOrphan(parent, "sb"); !errors.Is(err, ErrHeld) {
		t.Errorf("its owner lives: %v", err)
	}
	if err := os.WriteFile(filepath.Join(s.Path, ownerName), []byte(description.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { s.held.Close() })
	again, err := HoldOrphan(parent, "sb")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Remove(); err != nil {
		t.Error(err)
	}
}

// Another process makes files in the directory while it is removed.
func TestRemovalMeetsNewFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "execs", "1")
	for round := range 500 {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		var making sync.WaitGroup
		making.Go(func() {
			for i := range 10 {
				if os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600) != nil {
					return // it is removed
				}
			}
		})
		err := RemoveAll(filepath.Dir(filepath.Dir(dir)))
		making.Wait()
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}
