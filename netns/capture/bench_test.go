package capture

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

func BenchmarkOpen(b *testing.B) {
	testhost.NeedRoot(b, "network namespaces are made")
	for name, m := range map[string]method{"TPROXY": withTPROXY, "listeners": withoutTPROXY} {
		b.Run(name, func(b *testing.B) {
			measure(b, func(namespace *os.File) time.Duration {
				start := time.Now()
				l, err := open(namespace, webPorts, m)
				took := time.Since(start)
				if err != nil {
					b.Fatal(err)
				}
				l.Close()
				return took
			})
		})
	}
}

func BenchmarkSetPorts(b *testing.B) {
	testhost.NeedRoot(b, "network namespaces are made")
	measure(b, func(namespace *os.File) time.Duration {
		l, err := Open(namespace, webPorts)
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		start := time.Now()
		if err := SetPorts(namespace, webPorts[1:]); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	})
}

// measure reports the median of a step in a new namespace each.
func measure(b *testing.B, step func(namespace *os.File) time.Duration) {
	var all []time.Duration
	for b.Loop() {
		namespace, err := netns.Create()
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, step(namespace))
		namespace.Close()
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "median-µs")
}
