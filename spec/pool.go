package spec

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// PoolConfig bounds the pool of a launcher: blank sandboxes that are kept ready, so that a new
// sandbox needs only its own configuration. Zero fields have the default in brackets.
type PoolConfig struct {
	// Min is the number of blanks that stay ready [5]. Max is the most that are ready at a time
	// [50]. Both count the blanks of all kinds together.
	Min int `json:"min,omitempty"`
	Max int `json:"max,omitempty"`
	// WarmUp is the number of blanks that are made at the start [10, at most Max].
	WarmUp int `json:"warmup,omitempty"`
	// IdleTimeout ends blanks above Min whose kind nobody has asked for in that time [5m].
	IdleTimeout Duration `json:"idle,omitzero"`
	// MaxAge is the age at which a blank is replaced [1h].
	MaxAge Duration `json:"age,omitzero"`
	// CheckEvery is the time between two checks of a blank [30s].
	CheckEvery Duration `json:"check,omitzero"`
}

// MaxBlanks bounds [PoolConfig.Max].
const MaxBlanks = 1000

// Complete returns the configuration with the defaults filled in. Its error names each mistake.
func (c PoolConfig) Complete() (PoolConfig, error) {
	c.Max = cmp.Or(c.Max, max(50, c.Min, c.WarmUp))
	c.Min = cmp.Or(c.Min, min(5, c.Max))
	c.WarmUp = cmp.Or(c.WarmUp, min(max(10, c.Min), c.Max))
	c.IdleTimeout = cmp.Or(c.IdleTimeout, Duration(300*time.Second))
	c.MaxAge = cmp.Or(c.MaxAge, Duration(3600*time.Second))
	c.CheckEvery = cmp.Or(c.CheckEvery, Duration(30*time.Second))
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, &FieldError{Field: "pool." + field, Problem: fmt.Sprintf(format, args...)})
	}
	if c.Max < 1 || c.Max > MaxBlanks {
		wrong("max", "%d is not between 1 and %d", c.Max, MaxBlanks)
	}
	for name, n := range map[string]int{"min": c.Min, "warmup": c.WarmUp} {
		if n < 1 || n > c.Max {
			wrong(name, "%d is not between 1 and the max of %d", n, c.Max)
		}
	}
	for name, d := range map[string]Duration{"idle": c.IdleTimeout, "age": c.MaxAge, "check": c.CheckEvery} {
		if d < Duration(time.Second) {
			wrong(name, "%s is less than 1s", time.Duration(d))
		}
	}
	return c, errors.Join(errs...)
}

// poolFields set the fields of a PoolConfig from text.
var poolFields = map[string]func(c *PoolConfig, text string) error{
	"min":    count(func(c *PoolConfig) *int { return &c.Min }),
	"max":    count(func(c *PoolConfig) *int { return &c.Max }),
	"warmup": count(func(c *PoolConfig) *int { return &c.WarmUp }),
	"idle":   period(func(c *PoolConfig) *Duration { return &c.IdleTimeout }),
	"age":    period(func(c *PoolConfig) *Duration { return &c.MaxAge }),
	"check":  period(func(c *PoolConfig) *Duration { return &c.CheckEvery }),
}

func count(of func(*PoolConfig) *int) func(*PoolConfig, string) error {
	return func(c *PoolConfig, text string) (err error) {
		if *of(c), err = strconv.Atoi(text); err == nil && *of(c) < 1 {
			err = errors.New("it must be 1 or more")
		} else if err != nil {
			err = errors.New("it is not a number")
		}
		return err
	}
}

func period(of func(*PoolConfig) *Duration) func(*PoolConfig, string) error {
	return func(c *PoolConfig, text string) error {
		d, err := time.ParseDuration(text)
		if err != nil {
			return errors.New("it is not a duration such as 300s or 5m")
		}
		*of(c) = Duration(d)
		return nil
	}
}

// ParsePool reads a configuration such as "min=5,max=50,warmup=10,idle=300s,age=3600s,check=30s", and
// completes it. Each field can be left out.
func ParsePool(text string) (PoolConfig, error) {
	var c PoolConfig
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(part, "=")
		set := poolFields[name]
		if !ok || set == nil {
			return c, fmt.Errorf("pool: %q is no setting; write NAME=VALUE with the names %s, such as min=5,max=50",
				part, strings.Join(slices.Sorted(maps.Keys(poolFields)), ", "))
		}
		if err := set(&c, value); err != nil {
			return c, fmt.Errorf("pool: %s: %w", part, err)
		}
	}
	return c.Complete()
}

// String is the configuration as [ParsePool] reads it.
func (c PoolConfig) String() string {
	var parts []string
	add := func(name, value string, is bool) {
		if is {
			parts = append(parts, name+"="+value)
		}
	}
	add("min", strconv.Itoa(c.Min), c.Min != 0)
	add("max", strconv.Itoa(c.Max), c.Max != 0)
	add("warmup", strconv.Itoa(c.WarmUp), c.WarmUp != 0)
	add("idle", time.Duration(c.IdleTimeout).String(), c.IdleTimeout != 0)
	add("age", time.Duration(c.MaxAge).String(), c.MaxAge != 0)
	add("check", time.Duration(c.CheckEvery).String(), c.CheckEvery != 0)
	return strings.Join(parts, ",")
}

// PoolStats are the counts of a pool since its start. For a user other than root they count the
// user's own sandboxes and blanks only.
type PoolStats struct {
	// Config is the configuration of the pool, with its defaults.
	Config PoolConfig `json:"config"`
	// Total counts the blanks that are ready or being made; Ready those that are ready.
	Total int `json:"total"`
	Ready int `json:"ready"`
	// Hits are the new sandboxes that have claimed a blank.
	Hits int `json:"hits"`
	// Misses are the new sandboxes without a blank, by the reason: "empty" if no blank was ready,
	// "place" for a mount point in a directory of the host, "broken" if the blank broke during the
	// claim, "rule" if the user's rule has no blanks, or the field of the configuration that no blank can have.
	Misses map[string]int `json:"misses,omitempty"`
	// AverageClaim and LongestClaim are the times that claims took.
	AverageClaim Duration `json:"average_claim,omitzero"`
	LongestClaim Duration `json:"longest_claim,omitzero"`
	// Stale blanks were ended because the host's files had changed or PID 1 did not answer.
	Stale int `json:"stale,omitempty"`
	// Failed blanks could not be made or removed; prune removes the rest. LastError is the reason of
	// the last failure. Root sees both.
	Failed    int    `json:"failed,omitempty"`
	LastError string `json:"last_error,omitempty"`
}
