package integration

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// objectCounts are the numbers of objects that a launcher and its sandboxes have.
type objectCounts struct{ mounts, cgroups, files, bytes int }

// holds counts the mounts of a process, the cgroups of this world, and the files of the state root and of
// the data directory with their bytes.
func (s *sandboxes) holds(pid int) (h objectCounts) {
	s.t.Helper()
	h.mounts = strings.Count(content(s.t, fmt.Sprintf("/proc/%d/mountinfo", pid)), "\n")
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, hierarchy := range hierarchies {
		h.cgroups += len(cgroupsBelow(hierarchy.mountPoint))
	}
	for _, dir := range []string{s.root, dataDir} {
		_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
			if err == nil {
				h.files++
				if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
					h.bytes += int(info.Size())
				}
			}
			return nil // a file that vanished meanwhile is none
		})
	}
	return h
}

func (h objectCounts) within(most objectCounts) bool {
	return h.mounts <= most.mounts && h.cgroups <= most.cgroups && h.files <= most.files && h.bytes <= most.bytes+64<<10
}

// Sandboxes that claim blanks come and go: after hundreds more, launcher and host have as much as before.
func TestManyClaimsInARow(t *testing.T) {
	testhost.Long(t)
	s := newSandboxes(t)
	p := newPoolLauncher(s, "--pool", "min=4,max=4")
	c := &client{sandboxes: s, Manager: p.Manager, launcher: p.launcher.testProcess}
	run := func(n int) {
		t.Helper()
		comeAndGo(t, n, func() (*sandbox.Sandbox, error) {
			if err := awaitReadyBlank(t.Context(), p.Manager); err != nil {
				return nil, err
			}
			return p.Create(t.Context(), sandbox.Config{Storage: sandbox.StorageMemory}, sandbox.Named("box"))
		})
		if err := awaitPool(t.Context(), p.Manager, 4); err != nil {
			t.Fatal(err)
		}
	}
	run(60)
	pid := p.launcher.cmd.Process.Pid
	kib, descriptors := footprint(t, pid)
	before, all, slab := s.holds(pid), groups(t), numbersOf(t, "/proc/meminfo")["Slab"]
	hits, begin, n := p.stats().Hits, time.Now(), inARow(t, 300)
	run(n)
	t.Logf("%d claims in %v; cgroups of the kernel: %d and then %d; kernel memory: %d and then %d KiB",
		n, time.Since(begin), all, groups(t), slab, numbersOf(t, "/proc/meminfo")["Slab"])
	if hits = p.stats().Hits - hits; hits < n*9/10 { // the host's files can change
		t.Errorf("%d of %d claimed a blank: %+v", hits, n, p.stats())
	}
	c.settles(kib, descriptors)
	var now objectCounts
	eventually(t, fmt.Sprintf("the host has %+v", before), func() bool { now = s.holds(pid); return now.within(before) })
	t.Logf("the host had %+v and has %+v", before, now)
	eventually(t, "the cgroups of all are gone", func() bool { return groups(t) < all+int64(n)/2 })
	p.end()
}

func awaitReadyBlank(ctx context.Context, m *sandbox.Manager) error {
	for {
		if stats, err := m.PoolStats(ctx); err != nil || stats.Ready > 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// Two hundred sandboxes at once, from a pool of fifty: each is another one, and all work.
func TestManyClaimsAtOnce(t *testing.T) {
	testhost.Long(t)
	const n, blanks = 200, 50
	for try := 1; ; try++ {
		stats := claimAtOnce(t, n, blanks)
		if stats.Stale > 0 && try < 5 { // others have changed files of the host, and blanks were of no use
			continue
		}
		if stats.Hits < blanks*9/10 || stats.Hits+stats.Misses["empty"]+stats.Misses["stale"] != n {
			t.Errorf("%+v", stats)
		}
		return
	}
}

// claimAtOnce makes n sandboxes at once by a launcher with blanks, and checks that they are n different ones.
func claimAtOnce(t *testing.T, n, blanks int) sandbox.PoolStats {
	t.Helper()
	s := newSandboxes(t)
	p := newPoolLauncher(s, "--pool", fmt.Sprintf("min=%d,max=%d", blanks, blanks))
	p.awaitReady(blanks)
	boxes := make([]*sandbox.Sandbox, n)
	begin := time.Now()
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() {
			box, err := p.Create(context.Background(), sandbox.Config{Storage: sandbox.StorageMemory})
			if err != nil {
				t.Error(err)
				return
			}
			boxes[i] = box
			if r, err := box.Run(context.Background(), "ls -A /tmp; echo mark > /tmp/mark; hostname"); err != nil || string(r.Stdout) != "sandbox\n" {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	clients.Wait()
	if t.Failed() {
		t.FailNow()
	}
	inits := map[int]bool{}
	for _, box := range boxes {
		info, err := box.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inits[info.Pid] = true
	}
	stats := p.stats()
	t.Logf("%d sandboxes in %v: %+v", n, time.Since(begin), stats)
	if len(inits) != n {
		t.Errorf("%d sandboxes", len(inits))
	}
	closeAll(t, boxes)
	p.end()
	if left := s.state(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	return stats
}
