package launcher

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// benchSandbox is one that is up.
func benchSandbox(b *testing.B) *Sandbox {
	b.Helper()
	testhost.NeedRoot(b, "mounts and cgroups")
	l, err := New(Dirs{State: b.TempDir(), Data: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	sb, err := l.Create(b.Context(), protocol.Create{}, Sources{})
	if err != nil {
		b.Fatal(err)
	}
	testhost.CloseAfter(b, sb)
	return sb
}

// execTrue runs true with its output read to the end.
func execTrue(b *testing.B, sb *Sandbox) {
	var files, readers [3]*os.File
	for i := 1; i < 3; i++ {
		r, w, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		readers[i], files[i] = r, w
	}
	p, err := sb.Start(b.Context(), spec.Command{Args: []string{"true"}}, files)
	if err != nil {
		b.Fatal(err)
	}
	var buffer [512]byte
	for i := 1; i < 3; i++ {
		files[i].Close()
	}
	for i := 1; i < 3; i++ {
		_, _ = readers[i].Read(buffer[:])
		readers[i].Close()
	}
	if r, err := p.Wait(b.Context()); err != nil || !r.OK() {
		b.Fatal(r, err)
	}
	if err := p.Close(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkExec(b *testing.B) {
	sb := benchSandbox(b)
	for b.Loop() {
		execTrue(b, sb)
	}
}

func BenchmarkExecAtOnce(b *testing.B) {
	sb := benchSandbox(b)
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			execTrue(b, sb)
		}
	})
}

// BenchmarkHost is what there is to compare with.
func BenchmarkHost(b *testing.B) {
	for b.Loop() {
		if _, err := exec.Command("true").CombinedOutput(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHostAtOnce(b *testing.B) {
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := exec.Command("true").CombinedOutput(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkCreateAndClose(b *testing.B) {
	sb := benchSandbox(b)
	for b.Loop() {
		other, err := sb.launcher.Create(b.Context(), protocol.Create{}, Sources{})
		if err != nil {
			b.Fatal(err)
		}
		execTrue(b, other)
		if err := other.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFiles is what the watch of files adds to an exec that changes none: both
// ways in turn, on the same sandbox.
func BenchmarkFiles(b *testing.B) {
	sb := benchSandbox(b)
	var took [2][]float64
	for n := 0; b.Loop(); n++ {
		for k := range 2 {
			i := (k + n) % 2 // the first of two is slower
			without := i == 1
			begin := time.Now()
			p, err := sb.Start(b.Context(), spec.Command{Args: []string{"true"}, NoFiles: without}, [3]*os.File{})
			if err != nil {
				b.Fatal(err)
			}
			if r, err := p.Wait(b.Context()); err != nil || !r.OK() {
				b.Fatal(r, err)
			}
			took[i] = append(took[i], float64(time.Since(begin).Nanoseconds()))
			if err := p.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	b.ReportMetric(took[0][len(took[0])/2], "ns/watched")
	b.ReportMetric(took[1][len(took[1])/2], "ns/unwatched")
}
