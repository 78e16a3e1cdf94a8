package fault

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Wire is an error on the wire. At the client it has the same text as the original
// error, and matches, by errors.Is and errors.As, the same errors of this package, of
// contexts, fs.ErrNotExist, and ECONNREFUSED.
type Wire struct {
	Text string `json:"text"`
	// Conditions are the names of those that the error is.
	Conditions []string `json:"is,omitempty"`
	// Sandbox and Inner are of a SandboxError, Reason, Code and Missing of a NotRunError,
	// Config of a ConfigError.
	Sandbox string `json:"sandbox,omitempty"`
	Inner   string `json:"inner,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Code    int    `json:"code,omitempty"`
	Missing string `json:"missing,omitempty"`
	Config  string `json:"config,omitempty"`
}

// Conditions are the sentinels that cross the wire, by name.
func Conditions() map[string]error {
	return map[string]error{
		"not_found":   ErrNotFound,
		"exists":      ErrExists,
		"not_running": ErrNotRunning,
		"paused":      ErrPaused,
		"busy":        ErrBusy,
		"refused":     ErrRefused,
		"unavailable": ErrUnavailable,
		"damaged":     ErrDamaged,
		"canceled":    context.Canceled,
		"deadline":    context.DeadlineExceeded,
		"no_file":     fs.ErrNotExist,
		"done":        os.ErrProcessDone,
		"no_listener": unix.ECONNREFUSED,
	}
}

// ToWire puts an error in the form for the wire. A mistake in a configuration
// becomes a ConfigError.
func ToWire(err error) *Wire {
	f := &Wire{Text: bounded(err.Error())}
	for name, condition := range Conditions() {
		if errors.Is(err, condition) {
			f.Conditions = append(f.Conditions, name)
		}
	}
	if of, ok := errors.AsType[*SandboxError](err); ok {
		f.Sandbox, f.Inner = bounded(of.ID), bounded(of.Err.Error())
	}
	if notRun, ok := errors.AsType[*NotRunError](err); ok {
		f.Reason, f.Code, f.Missing = bounded(notRun.Reason), notRun.Code, bounded(notRun.Missing)
	}
	var config *ConfigError
	var field *spec.FieldError
	switch {
	case errors.As(err, &config):
		f.Config = bounded(config.Reason)
	case errors.As(err, &field):
		f.Config = f.Text
	}
	return f
}

// maxFaultText bounds each text of a fault, in bytes: errors contain input of clients.
const maxFaultText = 16 << 10

func bounded(text string) string {
	if len(text) <= maxFaultText {
		return text
	}
	return strings.ToValidUTF8(text[:maxFaultText], "") + "…"
}

// Err is the error that the fault stands for.
func (f *Wire) Err() error {
	causes := f.causes()
	if f.Sandbox == "" {
		return Worded(f.Text, causes)
	}
	of := &SandboxError{ID: f.Sandbox, Err: Worded(f.Inner, causes)}
	return Worded(f.Text, []error{of})
}

func (f *Wire) causes() []error {
	var causes []error
	if f.Code != 0 || f.Reason != "" {
		causes = append(causes, &NotRunError{Code: f.Code, Reason: f.Reason, Missing: f.Missing})
	}
	if f.Config != "" {
		causes = append(causes, &ConfigError{Reason: f.Config})
	}
	known := Conditions()
	for _, name := range f.Conditions {
		// A name that a newer launcher has is only in the text.
		if condition, ok := known[name]; ok {
			causes = append(causes, condition)
		}
	}
	return causes
}

// Worded is an error with this text that is all its causes.
func Worded(text string, causes []error) error {
	if len(causes) == 1 && causes[0].Error() == text {
		return causes[0]
	}
	return &remoteError{text, causes}
}

// remoteError is an error of the launcher's side.
type remoteError struct {
	text   string
	causes []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.causes }
