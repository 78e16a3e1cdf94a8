package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestHeldStateIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	s, err := makeState(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holdState(dir, "a"); !errors.Is(err, errHeld) {
		t.Errorf("second hold: got %v, want errHeld", err)
	}
	if err := s.held.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := holdState(dir, "a")
	if err != nil {
		t.Fatalf("hold after its owner is gone: %v", err)
	}
	if err := again.remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := holdState(dir, "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("hold after remove: got %v, want not exist", err)
	}
}

func TestMakingAStateTwiceFails(t *testing.T) {
	dir := t.TempDir()
	s, err := makeState(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer s.remove()
	if _, err := makeState(dir, "a"); !errors.Is(err, fs.ErrExist) {
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
			if s, err := holdState(dir, "a"); err == nil {
				s.remove()
			}
		}
	})
	for range 2000 {
		s, err := makeState(dir, "a")
		if err != nil {
			t.Error(err)
			break
		}
		if err := lock(s.held); err != nil {
			t.Errorf("the directory that was made is not there: %v", err)
		}
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	remover.Wait()
}

func TestIDRangesAreDisjoint(t *testing.T) {
	r := idRanges{dir: t.TempDir()}
	const claims = 200
	bases := make([]uint32, claims)
	var all sync.WaitGroup
	for i := range claims {
		all.Go(func() {
			base, err := r.claim(fmt.Sprint("sb-", i))
			if err != nil {
				t.Error(err)
			}
			bases[i] = base
		})
	}
	all.Wait()
	seen := map[uint32]bool{}
	for _, base := range bases {
		if seen[base] {
			t.Errorf("range %#x was given out twice", base)
		}
		seen[base] = true
		if base < firstID || (base-firstID)%spec.IDs != 0 || base > firstID+(rangeCount-1)*spec.IDs {
			t.Errorf("base %#x is not that of a range", base)
		}
	}
	owners, err := r.owners()
	if err != nil {
		t.Fatal(err)
	}
	if len(owners) != claims {
		t.Errorf("%d owners of %d ranges", len(owners), claims)
	}
	for _, o := range owners {
		var i int
		if _, err := fmt.Sscanf(o.id, "sb-%d", &i); err != nil || bases[i] != o.base || o.claiming {
			t.Errorf("owner %+v, want base %#x", o, bases[i])
		}
	}
}

func TestAllIDRangesTakenIsAnError(t *testing.T) {
	r := idRanges{dir: t.TempDir()}
	var last uint32
	for i := range rangeCount {
		base, err := r.claim(fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		last = base
	}
	if _, err := r.claim("one more"); !errors.Is(err, errNoIDs) {
		t.Errorf("got %v, want errNoIDs", err)
	}
	if err := r.release(last); err != nil {
		t.Fatal(err)
	}
	if base, err := r.claim("one more"); err != nil || base != last {
		t.Errorf("got %#x, %v; want the released %#x", base, err, last)
	}
	if err := r.release(last); err != nil {
		t.Fatal(err)
	}
	if err := r.release(last); err != nil {
		t.Errorf("second release: %v", err)
	}
}

// A range whose file says nonsense may be that of a sandbox that seems to have
// none.
func TestDamagedRangesAreReleasedOnceNobodyLacksOne(t *testing.T) {
	r := idRanges{dir: t.TempDir()}
	whole, damaged := newID(), newID()
	for _, id := range []string{whole, damaged} {
		if _, err := r.claim(id); err != nil {
			t.Fatal(err)
		}
	}
	owners, err := r.owners()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range owners {
		if o.id == damaged {
			if err := os.WriteFile(r.file((o.base-firstID)/spec.IDs), []byte(damaged[:5]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		living []string
		ranges int
	}{{[]string{whole, damaged}, 2}, {[]string{whole}, 1}, {nil, 1}} {
		if err := r.releaseUnowned(c.living); err != nil {
			t.Fatal(err)
		}
		if owners, err := r.owners(); err != nil || len(owners) != c.ranges {
			t.Errorf("with %v living: ranges of %v, %v; want %d", c.living, owners, err, c.ranges)
		}
	}
}

// What a killed owner was about to start has its lock for a moment longer.
func TestADirectoryWhoseOwnerIsDeadIsWaitedFor(t *testing.T) {
	dead := exec.Command("sleep", "1000")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	description, err := describeProcess(dead.Process.Pid)
	if err := errors.Join(err, dead.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = dead.Wait() // killed
	parent := t.TempDir()
	s, err := makeState(parent, "sb")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holdOrphan(parent, "sb"); !errors.Is(err, errHeld) {
		t.Errorf("its owner lives: %v", err)
	}
	if err := os.WriteFile(filepath.Join(s.path, ownerName), []byte(description), 0o600); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { s.held.Close() })
	again, err := holdOrphan(parent, "sb")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.remove(); err != nil {
		t.Error(err)
	}
}

func TestCaptureKeepsTheFirstBytes(t *testing.T) {
	c := &capture{limit: 4}
	for _, part := range []string{"ab", "cd", "ef"} {
		if n, err := c.Write([]byte(part)); n != 2 || err != nil {
			t.Errorf("write %q: %d, %v", part, n, err)
		}
	}
	if string(c.kept) != "abcd" || !c.truncated {
		t.Errorf("kept %q, truncated %v", c.kept, c.truncated)
	}
}
