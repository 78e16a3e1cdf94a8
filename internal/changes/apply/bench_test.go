package apply

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	manyDirs  = 100
	manyFiles = 100 // in each
)

// fill makes many small files in a directory of the sandbox's.
func fill(t testing.TB, dir, word string) {
	t.Helper()
	content := make([]byte, 2000)
	copy(content, word)
	for d := range manyDirs {
		sub := filepath.Join(dir, fmt.Sprintf("dir%d", d))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range manyFiles {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file%d", f)), content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// copyTime is how long cp -a with one sync takes of the same files.
func copyTime(b *testing.B, dir string) time.Duration {
	b.Helper()
	unix.Sync()
	start := time.Now()
	sh(b, dir, "cp -a upper copy; sync -f copy")
	return time.Since(start)
}

// BenchmarkMany applies 10,000 small files, as new directories, as new files in
// directories that are there, and in place of others, and copies them for
// comparison. What has no name in the result is the removal of what was replaced,
// which nobody has to wait for.
func BenchmarkMany(b *testing.B) {
	for _, kind := range []string{"new directories", "new files", "modified files"} {
		b.Run(kind, func(b *testing.B) {
			var m measurement
			for b.Loop() {
				m.runOnce(b, kind)
			}
			n := float64(b.N)
			b.ReportMetric(m.plan.Seconds()*1e3/n, "plan-ms")
			b.ReportMetric(m.commit.Seconds()*1e3/n, "commit-ms")
			b.ReportMetric(m.cp.Seconds()*1e3/n, "cp-ms")
			b.ReportMetric((m.plan+m.commit).Seconds()/m.cp.Seconds(), "ratio")
		})
	}
}

type measurement struct{ plan, commit, cp time.Duration }

func (m *measurement) runOnce(b *testing.B, kind string) {
	dir := b.TempDir()
	o := &box{t: b, tree: filepath.Join(dir, "tree"), upper: filepath.Join(dir, "upper")}
	for _, d := range []string{o.tree, o.upper} {
		if err := os.Mkdir(d, 0o755); err != nil {
			b.Fatal(err)
		}
	}
	switch kind {
	case "new files":
		sh(b, o.tree, fmt.Sprintf("mkdir dir{0..%d}", manyDirs-1))
	case "modified files":
		fill(b, o.tree, "old")
	}
	o.since = coarse(b)
	fill(b, o.upper, "new")
	m.cp += copyTime(b, dir)
	unix.Sync()

	start := time.Now()
	p := o.plan(Options{})
	m.plan += time.Since(start)
	start = time.Now()
	if _, err := p.Commit(context.Background()); err != nil {
		b.Fatal(err)
	}
	m.commit += time.Since(start)
	if err := p.Close(); err != nil {
		b.Fatal(err)
	}
}
