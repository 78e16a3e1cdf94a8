package integration

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// throughVariable has the tests use sandboxes by a launcher that listens: "launcher", or "pool" for
// one with a pool. make test-pool compares the two.
const throughVariable = "SANDBOX_RUNTIME_INTEGRATION_THROUGH"

// goThrough are the commands that a launcher serves in such a run.
var goThrough = []string{"do", "up", "exec", "down"}

// A throughLauncher starts with the first command of a test.
type throughLauncher struct {
	once   sync.Once
	socket string
}

// goesThrough says that a command uses the launcher, which is there then.
func (s *sandboxes) goesThrough(args []string) bool {
	mode := os.Getenv(throughVariable)
	if mode == "" || len(args) == 0 || !slices.Contains(goThrough, args[0]) || slices.Contains(args, "--socket") || slices.Contains(args, "--local") {
		return false
	}
	s.listening.once.Do(func() { s.listen(mode) })
	return true
}

// listen starts the launcher. One with a pool has blanks for do and up before the test goes on.
func (s *sandboxes) listen(mode string) {
	s.t.Helper()
	s.listening.socket = socketOfTest(s.t)
	var flags []string
	if mode == "pool" {
		flags = []string{"--pool", "min=2,max=8,warmup=2"}
	}
	p := s.launcher(s.listening.socket, flags...)
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: s.listening.socket})
	if err != nil {
		s.t.Fatal(err)
	}
	if mode == "pool" {
		s.prime(m)
	}
	s.t.Cleanup(func() {
		if mode == "pool" {
			stats, err := m.PoolStats(context.Background())
			throughPool.add(stats, err)
			s.t.Logf("pool: %d hits, misses %v", stats.Hits, stats.Misses)
		}
		if err := m.Close(); err != nil {
			s.t.Error(err)
		}
		_ = p.cmd.Process.Signal(os.Interrupt) // it can have ended
		p.wait()
	})
}

// prime makes a sandbox on disk, so that the pool makes blanks of this kind, and waits for these.
func (s *sandboxes) prime(m *sandbox.Manager) {
	s.t.Helper()
	for range 2 {
		sb, err := m.Create(s.t.Context(), sandbox.Config{})
		if err == nil {
			err = sb.Close()
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	eventually(s.t, "blanks of both kinds", func() bool {
		stats, err := m.PoolStats(s.t.Context())
		return err == nil && stats.Ready >= 3
	})
	throughPool.primed(2)
}

// settled returns the list once the list is empty. A launcher that listens finishes a removal after its answer,
// so settled waits for some seconds.
func (s *sandboxes) settled(list func() []string) []string {
	left := list()
	for deadline := time.Now().Add(5 * time.Second); os.Getenv(throughVariable) != "" && len(left) > 0 && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
		left = list()
	}
	return left
}

// withoutBlanks leaves the parts of blanks out of what is left of a state root.
func (s *sandboxes) withoutBlanks(left []string) []string {
	if os.Getenv(throughVariable) != "pool" {
		return left
	}
	dirs, err := filepath.Glob(filepath.Join(s.root, "@sandboxes", "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return !record.IsPending(dir) })
	return slices.DeleteFunc(left, func(path string) bool {
		owner, _ := os.Readlink(path) // as for ids
		return slices.ContainsFunc(dirs, func(dir string) bool {
			return filepath.Base(path) == filepath.Base(dir) || strings.Contains(owner, filepath.Base(dir))
		})
	})
}

// throughPool counts the claims of all tests.
var throughPool poolTally

type poolTally struct {
	mu     sync.Mutex
	hits   int
	misses map[string]int
	errs   []error
}

func (p *poolTally) add(s sandbox.PoolStats, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.errs = append(p.errs, err)
	}
	p.hits += s.Hits
	if p.misses == nil {
		p.misses = map[string]int{}
	}
	for reason, n := range s.Misses {
		p.misses[reason] += n
	}
}

// primed takes the sandboxes out of the counts that the tests have not asked for.
func (p *poolTally) primed(n int) { p.add(sandbox.PoolStats{Misses: map[string]int{"empty": -n}}, nil) }

// report prints the counts. It returns false if claims were few.
func (p *poolTally) report() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if os.Getenv(throughVariable) != "pool" {
		return true
	}
	fmt.Printf("pool: %d hits; misses:", p.hits)
	total := 0
	for _, reason := range slices.Sorted(maps.Keys(p.misses)) {
		fmt.Printf(" %s %d", reason, p.misses[reason])
		total += p.misses[reason]
	}
	fmt.Println("; errors:", p.errs)
	return p.hits > total
}
