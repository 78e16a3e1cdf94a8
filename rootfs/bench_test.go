package rootfs

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/languages"
)

// BenchmarkMount is what a root costs on the way of each start: open, and mount
// apart. Unmounting is not counted, and starts are spaced as real ones are.
func BenchmarkMount(b *testing.B) {
	asRoot(b)
	ws := ownedBench(b)
	for _, bench := range []struct {
		name string
		c    func(*Config)
	}{
		{"host", func(*Config) {}},
		{"host and workspace", func(c *Config) { c.Workspace = ws }},
		{"directory", func(c *Config) { c.Dir = "/usr" }},
		{"unfolded", func(c *Config) { c.Binds = []Bind{{ws, "/usr/local/bin/new", false}} }},
	} {
		b.Run(strings.ReplaceAll(bench.name, " ", "-"), func(b *testing.B) {
			testhost.PrivateMounts(b) // each runs in a goroutine of its own
			c := testConfig()
			bench.c(&c)
			dir := stage(b)
			var opening, mounting []time.Duration
			for b.Loop() {
				b.StopTimer()
				time.Sleep(8 * time.Millisecond)
				b.StartTimer()
				start := time.Now()
				r, err := Open(c)
				if err != nil {
					b.Fatal(err)
				}
				opened := time.Now()
				if _, err := r.Mount(dir); err != nil {
					b.Fatal(err)
				}
				mounting = append(mounting, time.Since(opened))
				opening = append(opening, opened.Sub(start))
				b.StopTimer()
				if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(median(opening), "median-open-µs")
			b.ReportMetric(median(mounting), "median-mount-µs")
		})
	}
	b.Run("languages", func(b *testing.B) {
		for b.Loop() {
			languages.Find(os.Getenv("PATH"), os.Getenv("HOME"), nil, nil)
		}
	})
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Microseconds())
}

func ownedBench(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	if err := os.Chown(dir, 1234, 1234); err != nil {
		b.Fatal(err)
	}
	return dir
}
