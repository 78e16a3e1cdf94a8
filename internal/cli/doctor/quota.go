package doctor

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/server"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A quotaReport compares a quota of the kernel with the most that all sandboxes
// together can use of it.
type quotaReport struct {
	Name   string      `json:"name"` // the sysctl
	Title  string      `json:"title"`
	Status quotaStatus `json:"status"`
	Demand int64       `json:"demand"` // of all sandboxes, each at its limits
	Quota  int64       `json:"quota"`  // the part for sandboxes
	Effect string      `json:"effect"`
	Fix    string      `json:"fix"`
	Error  string      `json:"error"`
}

type quotaStatus string

const (
	quotaOK      quotaStatus = "ok"
	quotaNote    quotaStatus = "note" // exceeded by the defaults, without rules
	quotaWarn    quotaStatus = "warn" // exceeded by the rules
	quotaUnknown quotaStatus = "unknown"
)

// A demand is the most that sandboxes can use at once.
type demand struct{ files, tasks, terminals int64 }

// fileBytes is the least memory of an open file that the kernel charges to a sandbox:
// sizeof(struct file), Linux 6.13; before, 232 or more. RLIMIT_NOFILE is no bound of open
// files: a mapping keeps its file open without a descriptor.
const fileBytes = 184

// add counts so many sandboxes, each with these limits. Sums end at [math.MaxInt64].
func (d *demand) add(sandboxes int, l spec.Limits) {
	n := int64(sandboxes)
	d.files = plus(d.files, times(n, int64(l.Memory)/fileBytes))
	d.tasks = plus(d.tasks, times(n, l.Pids+spec.AgentPids))
	d.terminals = plus(d.terminals, times(n, spec.MaxTerminals))
}

// plus and times take numbers that are not negative.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func times(a, b int64) int64 {
	if b != 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

// readDemand adds up the bounds of a launcher's rules. Without a file it is the demand of
// one user with a rule of defaults.
func readDemand(file string) (demand, error) {
	var d demand
	if file == "" {
		d.add(server.DefaultSandboxes, spec.DefaultLimits())
		return d, nil
	}
	rules, err := server.ReadRules(file)
	if err != nil {
		return demand{}, fmt.Errorf("option --rules: %w", err)
	}
	for _, p := range rules.Peers {
		d.add(p.Sandboxes, p.Limits)
	}
	return d, nil
}

// The largest values that the kernel takes: PID_MAX_LIMIT, FUTEX_TID_MASK and
// NR_UNIX98_PTY_MAX.
const (
	largestPidMax     = 1 << 22
	largestThreadsMax = 1<<30 - 1
	largestPtyMax     = 1 << 20
)

// compareQuotas has exceeded as the status of a quota that is less than the demand.
func compareQuotas(d demand, exceeded quotaStatus) []quotaReport {
	files, filesErr := kernel.Sysctl("fs.file-max")
	pids, pidsErr := kernel.Sysctl("kernel.pid_max")
	threads, threadsErr := kernel.Sysctl("kernel.threads-max")
	ptys, ptysErr := kernel.Sysctl("kernel.pty.max")
	reserve, reserveErr := kernel.Sysctl("kernel.pty.reserve")
	all := []quotaReport{
		{
			Name: "fs.file-max", Title: "open files", Demand: d.files, Quota: files, Error: errorText(filesErr),
			Effect: "sandboxes can use them up, and the host's programs without CAP_SYS_ADMIN then open no file",
			Fix:    setTo("fs.file-max", math.MaxInt64, math.MaxInt64), // systemd's value
		},
		{
			Name: "kernel.pid_max", Title: "numbers of processes", Demand: times(kernel.NumbersOfATask, d.tasks), Quota: pids / 2, Error: errorText(pidsErr),
			Effect: "sandboxes have half of kernel.pid_max together, and can use up each other's share",
			Fix:    setTo("kernel.pid_max", times(2*kernel.NumbersOfATask, d.tasks), largestPidMax),
		},
		{
			Name: "kernel.threads-max", Title: "threads", Demand: d.tasks, Quota: threads / 2, Error: errorText(threadsErr),
			Effect: "sandboxes have half of kernel.threads-max together, and can use up each other's share",
			Fix:    setTo("kernel.threads-max", times(2, d.tasks), largestThreadsMax),
		},
		{
			// The reserve is for the host's own devpts (devpts_new_index()).
			Name: "kernel.pty.max", Title: "pseudo-terminals", Demand: d.terminals, Quota: max(ptys-reserve, 0),
			Error:  errorText(cmp.Or(ptysErr, reserveErr)),
			Effect: "sandboxes can use them up, and containers and other sandboxes then get none",
			Fix:    setTo("kernel.pty.max", plus(d.terminals, reserve), largestPtyMax),
		},
	}
	for i := range all {
		all[i].judge(exceeded)
	}
	return all
}

func (q *quotaReport) judge(exceeded quotaStatus) {
	switch {
	case q.Error != "":
		q.Status = quotaUnknown
	case q.Demand > q.Quota:
		q.Status = exceeded
		return
	default:
		q.Status = quotaOK
	}
	q.Effect, q.Fix = "", ""
}

// setTo is the way out of a quota that is too small.
func setTo(name string, value, largest int64) string {
	const lower = `lower "sandboxes" or "limits" in the launcher's rules`
	if value > largest {
		return lower
	}
	return fmt.Sprintf("sysctl -w %s=%d, or %s", name, value, lower)
}

// compare fills in the quotas. They change no verdict.
func (r *Report) compare(rules string, d demand) {
	exceeded := quotaNote
	if rules != "" {
		exceeded = quotaWarn
	}
	r.Rules, r.Quotas = rules, compareQuotas(d, exceeded)
}

func (r Report) writeQuotas(b *strings.Builder) {
	if r.Rules == "" {
		fmt.Fprintf(b, "quotas that sandboxes share, for %d sandboxes with the default limits\n", server.DefaultSandboxes)
	} else {
		fmt.Fprintf(b, "quotas that sandboxes share, for all that %q allows\n", r.Rules)
	}
	for _, q := range r.Quotas {
		q.write(b)
	}
}

func (q quotaReport) write(b *strings.Builder) {
	switch q.Status {
	case quotaUnknown:
		line(b, "warn", "%s: %s", q.Title, q.Error)
	case quotaOK:
		line(b, "ok", "%s: up to %d of %d (%s)", q.Title, q.Demand, q.Quota, q.Name)
	default:
		line(b, string(q.Status), "%s: up to %d, more than %d (%s): %s. To change it: %s", q.Title, q.Demand, q.Quota, q.Name, q.Effect, q.Fix)
	}
}

// Examine looks for the features that the host offers and lacks, and compares the host's
// quotas with the most that the launcher's rules allow.
func Examine(rules string) (*Report, error) {
	demand, err := readDemand(rules)
	if err != nil {
		return nil, err
	}
	r, err := examine()
	if err != nil {
		return nil, err
	}
	r.compare(rules, demand)
	return &r, nil
}
