package spec

import (
	"fmt"
	"time"
)

// A Grace is the time that processes have for their own end: the runtime sends SIGTERM first,
// and SIGKILL when the time is over. The zero value means DefaultGrace, and NoGrace means SIGKILL
// at once. In JSON and on the command line it has the form of a [Duration], and "0s" is NoGrace.
type Grace Duration

const (
	// DefaultGrace is the time where nothing else is said.
	DefaultGrace = Grace(2 * time.Second)
	// NoGrace kills at once.
	NoGrace Grace = -1
	// MaxGrace is the longest time. A removal, and the end of a launcher, wait for as long.
	MaxGrace = Grace(time.Minute)
)

// Time is the time between SIGTERM and SIGKILL. 0: there is no SIGTERM.
func (g Grace) Time() time.Duration {
	if g == 0 {
		g = DefaultGrace
	}
	return time.Duration(max(0, min(g, MaxGrace)))
}

// MarshalText implements [encoding.TextMarshaler].
func (g Grace) MarshalText() ([]byte, error) { return Duration(max(0, g)).MarshalText() }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (g *Grace) UnmarshalText(text []byte) error {
	var d Duration
	if err := d.UnmarshalText(text); err != nil {
		return err
	}
	if d < 0 {
		return fmt.Errorf("grace %q is negative; 0 sends SIGKILL at once", text)
	}
	*g = Grace(d)
	if d == 0 {
		*g = NoGrace
	}
	return nil
}

// problem says why a grace cannot be had; empty: it can.
func (g Grace) problem() string {
	if g > MaxGrace {
		return fmt.Sprintf("%s is longer than %s", time.Duration(g), time.Duration(MaxGrace))
	}
	return ""
}
