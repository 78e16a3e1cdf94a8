package spec

import (
	"encoding/json"
	"time"
	"unicode/utf8"
)

// Status tells how a command ended.
type Status string

// The ways a command ends.
const (
	// StatusExited: it ended by itself, with ExitCode.
	StatusExited Status = "exited"
	// StatusTimedOut: Config.Timeout ended it and all it had started.
	StatusTimedOut Status = "timed_out"
	// StatusOOMKilled: the kernel killed it at the memory limit.
	StatusOOMKilled Status = "oom_killed"
	// StatusSignaled: a signal ended it.
	StatusSignaled Status = "signaled"
	// StatusLimit: a limit other than memory and time ended it.
	StatusLimit Status = "limit"
	// StatusDenied: the command made a forbidden system call and was killed for it.
	StatusDenied Status = "denied"
	// StatusLost: the sandbox went away underneath it.
	StatusLost Status = "lost"
	// StatusError: it was never run.
	StatusError Status = "error"
)

// Exit codes of results and of the command line that are not a command's own.
const (
	ExitTimedOut      = 124
	ExitRuntimeFailed = 125
	ExitNotExecutable = 126
	ExitNotFound      = 127
	ExitSignalBase    = 128
)

// Result describes the end of a command.
type Result struct {
	// ID of the sandbox it ran in.
	ID string `json:"id"`
	// Exec is the command's own id in there, empty where it had none.
	Exec   string `json:"exec,omitempty"`
	Status Status `json:"status"`
	// ExitCode is the command's own, 128+n when signal n ended it, 124 when
	// it timed out, -1 where no command ran.
	ExitCode int `json:"exit_code"`
	// Signal that ended it, as in "SIGTERM".
	Signal string `json:"signal"`
	// Reason is one sentence for a person or a model.
	Reason string `json:"reason"`

	// Stdout and Stderr are the output. Of long output they have the head and the tail.
	Stdout          []byte `json:"-"`
	Stderr          []byte `json:"-"`
	StdoutTruncated bool   `json:"stdout_truncated"`
	StderrTruncated bool   `json:"stderr_truncated"`
	// StdoutOmitted and StderrOmitted are how many bytes are missing in the middle, between the head and
	// the tail. Both halves have the same length, but for a character in UTF-8 that was cut.
	StdoutOmitted int64 `json:"stdout_omitted_bytes"`
	StderrOmitted int64 `json:"stderr_omitted_bytes"`

	Duration time.Duration `json:"-"`
	// CPU is the processor time of the command and all it started, user and
	// system.
	CPU time.Duration `json:"-"`
	// PeakMemory of all its processes in bytes, with files in memory and in the page
	// cache.
	PeakMemory uint64 `json:"peak_memory_bytes"`
	// IORead and IOWritten are bytes from and to disks; -1 where the host does
	// not count them.
	IORead    int64 `json:"io_read_bytes"`
	IOWritten int64 `json:"io_written_bytes"`
	// NetworkReceived and NetworkSent are bytes of the whole sandbox while the command ran; -1 if
	// not known.
	NetworkReceived int64 `json:"network_received_bytes"`
	NetworkSent     int64 `json:"network_sent_bytes"`

	// Violations are limits that were hit and acts that were refused, whether
	// or not they ended the command.
	Violations []Violation `json:"violations"`
	// Damaged says that the host's disk has lost writes of the sandbox, of this command or
	// of earlier ones; a violation has the details. Files may hold zeros, or older
	// content.
	Damaged bool `json:"damaged,omitempty"`
	// Files are the files that changed while the command ran. Nil if they were not
	// watched: for a detached command, and without isolation.
	Files *Files `json:"files"`
	// Isolation is empty where no command ran.
	Isolation Isolation `json:"isolation"`
	// Limits says which limits the host enforces.
	Limits LimitReport `json:"limits"`
	// Notes name abilities that the host lacks, and the replacements.
	Notes []string `json:"notes,omitempty"`
}

// OK tells whether the command ended by itself with exit code 0.
func (r Result) OK() bool { return r.Status == StatusExited && r.ExitCode == 0 }

// Violation is a limit that was hit or an act that was refused.
type Violation struct {
	// Kind is syscall, tool, path, network or limit.
	Kind   string `json:"kind"`
	Detail string `json:"detail"`
}

// Isolation is how far the command was kept from the host.
type Isolation string

// Degrees of isolation.
const (
	IsolationFull      Isolation = "full"
	IsolationSharedPID Isolation = "shared-pid" // full, but in the host's pid namespace
	IsolationNone      Isolation = "none"
)

// MarshalJSON writes the result with its output as text, or in base64 under
// other names where it is not UTF-8, and its times in milliseconds.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result
	if r.Violations == nil {
		r.Violations = []Violation{}
	}
	out := struct {
		plain
		Stdout       *string `json:"stdout,omitempty"`
		StdoutBase64 []byte  `json:"stdout_base64,omitempty"`
		Stderr       *string `json:"stderr,omitempty"`
		StderrBase64 []byte  `json:"stderr_base64,omitempty"`
		DurationMS   float64 `json:"duration_ms"`
		CPUMS        float64 `json:"cpu_ms"`
	}{plain: plain(r), DurationMS: milliseconds(r.Duration), CPUMS: milliseconds(r.CPU)}
	out.Stdout, out.StdoutBase64 = textOrBytes(r.Stdout)
	out.Stderr, out.StderrBase64 = textOrBytes(r.Stderr)
	return json.Marshal(out)
}

func textOrBytes(b []byte) (*string, []byte) {
	if !utf8.Valid(b) {
		return nil, b
	}
	s := string(b)
	return &s, nil
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}
