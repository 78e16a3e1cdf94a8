package integration

import (
	"testing"
	"time"
)

// What do promises where every limit can be held, told as its Result tells it.
func TestV2DoHoldsEveryLimit(t *testing.T) {
	need(t, controllersOnV2())
	s := newSandboxes(t)
	spin := "while :; do :; done"
	const memory = 48<<20 + beyond
	for name, c := range map[string]struct {
		args   []string
		status string
		holds  func(o outcome, took time.Duration) bool
	}{
		"memory": {
			args: []string{"--memory", "48m", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"}, status: "oom_killed",
			holds: func(o outcome, _ time.Duration) bool { return o.hit("limit", "memory") && o.PeakMemoryBytes <= memory },
		},
		"memory of files": {
			args:   []string{"--memory", "48m", "--disk", "48m", "--file-size", "1g", "--", "dd", "if=/dev/zero", "of=/tmp/f", "bs=1M", "count=200"},
			status: "oom_killed",
			holds:  func(o outcome, _ time.Duration) bool { return o.hit("limit", "memory") && o.PeakMemoryBytes <= memory },
		},
		"memory of a child": { // takes the whole command along
			args: []string{"--memory", "48m", "--", "sh", "-c", "dd if=/dev/zero of=/dev/null bs=200M count=1; echo $?"}, status: "oom_killed",
			holds: func(o outcome, _ time.Duration) bool { return o.hit("limit", "memory") && o.Stdout == "" },
		},
		"pids": {
			// bash would try again for 15 s.
			args:   []string{"--pids", "16", "--timeout", "20s", "--", "sh", "-c", "i=0; while test $i -lt 30; do sleep 1000 & i=$((i+1)); done"},
			status: "exited", // with what the shell makes of it
			holds:  func(o outcome, _ time.Duration) bool { return o.hit("limit", "16 processes") },
		},
		"cpu": {
			args: []string{"--cpus", "0.2", "--timeout", "4s", "--", "sh", "-c", spin}, status: "timed_out",
			holds: func(o outcome, took time.Duration) bool { return o.CPUMS < took.Seconds()*1000*0.3 },
		},
		"disk": {
			args:   []string{"--io-write", "2m", "--workspace", t.TempDir(), "--", "dd", "if=/dev/zero", "of=f", "conv=fsync", "bs=512k", "count=12"},
			status: "exited",
			holds:  func(_ outcome, took time.Duration) bool { return took > 2*time.Second },
		},
		"file size": {
			args: []string{"--file-size", "1m", "--", "dd", "if=/dev/zero", "of=big", "bs=64k", "count=100"}, status: "limit",
			holds: func(o outcome, _ time.Duration) bool { return o.hit("limit", "file") && o.Signal == "SIGXFSZ" },
		},
		"time": {
			args: []string{"--timeout", "2s", "--", "sh", "-c", "trap '' TERM; sleep 1000"}, status: "timed_out",
			holds: func(o outcome, _ time.Duration) bool { return o.ExitCode == 124 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			var took time.Duration
			o := inTries(func() outcome {
				begin := time.Now()
				defer func() { took = time.Since(begin) }()
				return s.json(c.args...)
			}, func(o outcome) bool { return name != "cpu" || c.holds(o, took) })
			t.Logf("%s after %v: %s; peak %d bytes, %.0f ms of processor time, violations %v", o.Status, took.Round(time.Millisecond), o.Reason, o.PeakMemoryBytes, o.CPUMS, o.Violations)
			if o.Status != c.status || !c.holds(o, took) {
				t.Errorf("got %+v", o)
			}
			if l := o.Limits; l.Memory != "enforced" || l.CPU != "enforced" || l.Pids != "enforced" || l.IO != "enforced" {
				t.Errorf("limits %+v", l)
			}
		})
	}
}
