package cgroups

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func BenchmarkProbe(b *testing.B) {
	realHost(b)
	for b.Loop() {
		if _, err := Probe(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEnsureParentThatIsThere(b *testing.B) {
	x := newBox(b, nil)
	for b.Loop() {
		if _, err := x.host.EnsureParent(x.parent, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGroup is the questions asked of a group with one process.
func BenchmarkGroup(b *testing.B) {
	x := newBox(b, nil)
	x.run("echo")
	g := x.group(nil)
	for name, ask := range map[string]func() error{
		"Stats":    func() error { _, err := g.Stats(); return err },
		"Events":   func() error { _, err := g.Events(); return err },
		"Procs":    func() error { _, err := g.Procs(); return err },
		"Children": func() error { _, err := x.host.Children(x.parent); return err },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := ask(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEnd is the end of a group: with a process to kill, without one, and
// the removal from all hierarchies. Making the groups is not counted.
func BenchmarkEnd(b *testing.B) {
	x := newBox(b, nil)
	g := x.group(nil)
	var kill, killEmpty, remove time.Duration
	n := 0
	for b.Loop() {
		x.mkdir(x.path)
		p := x.run("echo")
		start := time.Now()
		if err := g.Kill(bounded(b)); err != nil {
			b.Fatal(err)
		}
		kill += time.Since(start)
		p.Wait()
		start = time.Now()
		if err := g.Kill(bounded(b)); err != nil {
			b.Fatal(err)
		}
		killEmpty += time.Since(start)
		start = time.Now()
		if err := g.Delete(bounded(b)); err != nil {
			b.Fatal(err)
		}
		remove += time.Since(start)
		n++
	}
	b.ReportMetric(0, "ns/op")
	for unit, d := range map[string]time.Duration{"kill": kill, "kill-empty": killEmpty, "delete": remove} {
		b.ReportMetric(float64(d.Nanoseconds())/float64(n), unit+"-ns")
	}
}

// BenchmarkLeaf is a leaf's life without the command, whole and in parts.
func BenchmarkLeaf(b *testing.B) {
	x := newBox(b, nil)
	g, _ := x.divided(nil)
	if l, err := g.CreateLeaf("first", LeafOptions{}); err != nil { // opens the group
		b.Fatal(err)
	} else if err := l.Delete(b.Context()); err != nil {
		b.Fatal(err)
	}
	var made, killed, used, removed time.Duration
	before := processorTime(b)
	n := 0
	for b.Loop() {
		start := time.Now()
		l, err := g.CreateLeaf("exec-1", LeafOptions{Pids: 100})
		if err != nil {
			b.Fatal(err)
		}
		made += time.Since(start)
		start = time.Now()
		if err := l.Kill(b.Context()); err != nil {
			b.Fatal(err)
		}
		killed += time.Since(start)
		start = time.Now()
		if _, err := l.Usage(); err != nil {
			b.Fatal(err)
		}
		used += time.Since(start)
		start = time.Now()
		if err := l.Delete(b.Context()); err != nil {
			b.Fatal(err)
		}
		removed += time.Since(start)
		n++
	}
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(n), "cpu-ns")
	for unit, d := range map[string]time.Duration{"create": made, "kill-empty": killed, "usage": used, "delete": removed} {
		b.ReportMetric(float64(d.Nanoseconds())/float64(n), unit+"-ns")
	}
}

// BenchmarkLeavesAtOnce is that life on every processor.
func BenchmarkLeavesAtOnce(b *testing.B) {
	x := newBox(b, nil)
	g, _ := x.divided(nil)
	var names atomic.Int64
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l, err := g.CreateLeaf("exec-"+strconv.FormatInt(names.Add(1), 10), LeafOptions{Pids: 100})
			if err == nil {
				_, err = l.Usage()
			}
			if err == nil {
				err = l.Delete(b.Context())
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
