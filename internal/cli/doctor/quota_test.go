package doctor

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestDemandIsTheSumOfAllRules(t *testing.T) {
	tests := map[string]struct {
		rules string // "": no file
		want  demand
	}{
		"without a file": {"", demand{files: 16 * ((1 << 30) / 184), tasks: 16 * (512 + 32), terminals: 16 * 64}},
		"nobody":         {`{}`, demand{}},
		"defaults":       {`{"peers":[{"user":1001}]}`, demand{files: 16 * ((1 << 30) / 184), tasks: 16 * (128 + 32), terminals: 16 * 64}},
		"two users": {
			`{"peers":[{"user":1001,"sandboxes":2,"limits":{"memory":"184m","pids":100}},{"user":1002,"sandboxes":3,"limits":{"memory":"368m","pids":200}}]}`,
			demand{files: 2<<20 + 3*2<<20, tasks: 2*132 + 3*232, terminals: 5 * 64},
		},
		"no overflow": {
			`{"peers":[{"user":1001,"sandboxes":4611686018427387904},{"user":1002}]}`,
			demand{files: math.MaxInt64, tasks: math.MaxInt64, terminals: math.MaxInt64},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			file := ""
			if test.rules != "" {
				file = filepath.Join(t.TempDir(), "rules.json")
				if err := os.WriteFile(file, []byte(test.rules), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := readDemand(file)
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestAQuotaIsExceededAboveIt(t *testing.T) {
	for demand, want := range map[int64]quotaStatus{0: quotaOK, 100: quotaOK, 101: quotaWarn} {
		q := quotaReport{Demand: demand, Quota: 100, Effect: "effect", Fix: "fix"}
		q.judge(quotaWarn)
		if q.Status != want || (q.Fix == "") != (want == quotaOK) || (q.Effect == "") != (want == quotaOK) {
			t.Errorf("%d: %+v", demand, q)
		}
	}
	q := quotaReport{Error: "no such file", Demand: 101}
	if q.judge(quotaWarn); q.Status != quotaUnknown {
		t.Errorf("%+v", q)
	}
}

// The way out is a value with which the same demand is no longer exceeded, if the kernel
// takes such a value.
func TestAQuotaIsRaisedToTheDemand(t *testing.T) {
	var d demand
	d.add(1_000, spec.Limits{Memory: 1 << 30, Pids: 128})
	reserve, err := kernel.Sysctl("kernel.pty.reserve")
	if err != nil {
		t.Fatal(err)
	}
	raise := map[string]int64{"fs.file-max": math.MaxInt64, "kernel.pid_max": 960_000, "kernel.threads-max": 320_000, "kernel.pty.max": 64_000 + reserve}
	for _, q := range compareQuotas(d, quotaWarn) {
		if q.Status == quotaWarn && !strings.Contains(q.Fix, fmt.Sprintf("sysctl -w %s=%d, ", q.Name, raise[q.Name])) {
			t.Errorf("%+v", q)
		}
	}
	d.add(1<<23, spec.Limits{Memory: 1 << 30, Pids: 128})
	for _, q := range compareQuotas(d, quotaWarn) {
		if q.Name != "fs.file-max" && (q.Status != quotaWarn || strings.Contains(q.Fix, "sysctl")) {
			t.Errorf("beyond the kernel's largest value: %+v", q)
		}
	}
}
