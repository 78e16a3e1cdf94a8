// Package engine edits the configuration of Docker, containerd and podman so
// that they know a runtime by a name, or know it no longer.
//
// An Engine turns the bytes of a configuration into other bytes and touches
// nothing; Edit puts them into the file. Everything that is not of the runtime
// stays as it is, to the byte where the format allows it: settings, their
// order, comments, indentation.
package engine

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// programName is the file name by which an entry is known as one of ours, also
// after the binary has moved.
const programName = "sandbox-runtime"

// A Runtime is the entry for an engine.
type Runtime struct {
	Name    string // as the engine's users will say it
	Path    string // absolute, in UTF-8
	Default bool   // for containers that name no other
}

// An Engine knows one engine's configuration.
type Engine interface {
	// File is where the engine looks if nothing else was said.
	File() string
	// Add returns the configuration with the runtime in it, the same bytes if it
	// is there already. An entry of that name that Add did not make is an error.
	Add(config []byte, r Runtime) ([]byte, error)
	// Remove takes out Add's entry and nothing else. It returns the same bytes if there is
	// no such entry, and none at all if nothing remains that needs a file. Of r, Path is
	// only used to know an entry as ours.
	Remove(config []byte, r Runtime) ([]byte, error)
	// Piece is Add's part of the configuration, for people to look at.
	Piece(config []byte, r Runtime) (string, error)
	// Elsewhere checks the other files that the engine reads beside file: none
	// may have a runtime of the same name and another path, or be broken.
	Elsewhere(file string, config []byte, r Runtime) error
	// Added and Removed name the next step.
	Added(file string, r Runtime) string
	Removed(name string) string
}

// A LineError is an error at a line of a configuration, from 1.
type LineError struct {
	Line int
	Err  error
}

func (e *LineError) Error() string { return e.Err.Error() }
func (e *LineError) Unwrap() error { return e.Err }

// In names the file, and the line where err has one. It is nil if err is nil.
func In(file string, err error) error {
	if err == nil {
		return nil
	}
	if at, ok := errors.AsType[*LineError](err); ok {
		return fmt.Errorf("%s:%d: %w", file, at.Line, err)
	}
	return fmt.Errorf("%s: %w", file, err)
}

// atOffset is an error at the line of a byte of config.
func atOffset(config []byte, offset int, format string, args ...any) error {
	offset = max(0, min(offset, len(config)))
	return &LineError{1 + bytes.Count(config[:offset], []byte("\n")), fmt.Errorf(format, args...)}
}

// CheckName tells whether each engine can know a runtime by that name. It is
// the rule for the handler of a Kubernetes RuntimeClass, which is the tightest.
func CheckName(name string) error {
	switch {
	case name == "runc" || name == "crun":
		return fmt.Errorf("--name %s is the name of another runtime, which engines know without being told; choose another", name)
	case name == "" || len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" ||
		name[0] == '-' || name[len(name)-1] == '-':
		return fmt.Errorf("--name %q: a runtime's name is made of a-z, 0-9 and, not at either end, \"-\", 63 characters at most", name)
	}
	return nil
}

// isOurs tells whether a path in an entry is of this program.
func isOurs(path string, r Runtime) bool {
	return path != "" && (path == r.Path || filepath.Base(path) == programName)
}

// taken is the error for a name that somebody else has given.
func taken(name, path string) error {
	return fmt.Errorf("runtime %q is there already, as %s: choose another name with --name", name, path)
}

// Diff has the changed lines, as "- old" and "+ new": one run of them, for that is how an
// Engine edits.
func Diff(before, after []byte) string {
	old, now := slices.Collect(strings.Lines(string(before))), slices.Collect(strings.Lines(string(after)))
	for len(old) > 0 && len(now) > 0 && old[0] == now[0] {
		old, now = old[1:], now[1:]
	}
	for len(old) > 0 && len(now) > 0 && old[len(old)-1] == now[len(now)-1] {
		old, now = old[:len(old)-1], now[:len(now)-1]
	}
	var b strings.Builder
	for _, line := range old {
		fmt.Fprintf(&b, "- %s\n", strings.TrimRight(line, "\r\n"))
	}
	for _, line := range now {
		fmt.Fprintf(&b, "+ %s\n", strings.TrimRight(line, "\r\n"))
	}
	return b.String()
}
