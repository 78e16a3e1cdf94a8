package cgroups

import (
	"testing"
	"time"
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
		if _, err := x.host.EnsureParent(x.parent, nil); err != nil {
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
