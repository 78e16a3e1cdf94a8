package agent

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// BenchmarkTrue runs /bin/true through the agent and by fork and exec on the
// host, turn by turn, and reports the median of each and of their ratios. The
// agent's part begins with Begin and ends with Wait, as the host's with
// ForkExec and Wait4; both have three descriptors of /dev/null.
func BenchmarkTrue(b *testing.B) {
	s := open(b)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	fd := null.Fd()
	c := command("/bin/true")
	c.Stdin, c.Stdout, c.Stderr = null, null, null
	inside := func() {
		p, err := s.Begin(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		if exit, err := p.Wait(b.Context()); err != nil || exit.Status != 0 {
			b.Fatal(exit, err)
		}
	}
	host := func() {
		pid, err := syscall.ForkExec("/bin/true", c.Args, &syscall.ProcAttr{Env: c.Env, Files: []uintptr{fd, fd, fd}})
		if err != nil {
			b.Fatal(err)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status != 0 {
			b.Fatal(status, err)
		}
	}
	timed := func(f func()) float64 {
		start := time.Now()
		f()
		return float64(time.Since(start).Nanoseconds())
	}
	var insides, hosts, ratios []float64
	for b.Loop() {
		h, i := timed(host), timed(inside)
		insides, hosts, ratios = append(insides, i), append(hosts, h), append(ratios, i/h)
	}
	b.ReportMetric(median(insides)/1000, "µs-agent")
	b.ReportMetric(median(hosts)/1000, "µs-host")
	b.ReportMetric(median(ratios), "ratio")
}

func median(n []float64) float64 {
	slices.Sort(n)
	return n[len(n)/2]
}
