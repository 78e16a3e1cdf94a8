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

// Complete returns the configuration with the defaults filled in. Its error has a [*FieldError] for each
// mistake.
func (c PoolConfig) Complete() (PoolConfig, error) {
	c = c.withDefaults()
	return c, errors.Join(c.problems("pool.")...)
}

func (c PoolConfig) withDefaults() PoolConfig {
	c.Max = cmp.Or(c.Max, min(max(50, c.Min, c.WarmUp), MaxBlanks))
	c.Min = cmp.Or(c.Min, min(5, c.Max))
	c.WarmUp = cmp.Or(c.WarmUp, min(max(10, c.Min), c.Max))
	c.IdleTimeout = cmp.Or(c.IdleTimeout, Duration(300*time.Second))
	c.MaxAge = cmp.Or(c.MaxAge, Duration(3600*time.Second))
	c.CheckEvery = cmp.Or(c.CheckEvery, Duration(30*time.Second))
	return c
}

// problems are the mistakes in a configuration with its defaults.
func (c PoolConfig) problems(prefix string) (p problems) {
	number := func(field string, n, most int, mostName string) {
		if n < 1 || n > most {
			p.add(prefix+field, "%d is not between 1 and %s%d", n, mostName, most)
		}
	}
	number("min", c.Min, c.Max, "the max of ")
	number("max", c.Max, MaxBlanks, "")
	number("warmup", c.WarmUp, c.Max, "the max of ")
	duration := func(field string, d Duration) {
		if time.Duration(d) < leastPeriod {
			p.add(prefix+field, "%s is less than %s", time.Duration(d), leastPeriod)
		}
	}
	duration("idle", c.IdleTimeout)
	duration("age", c.MaxAge)
	duration("check", c.CheckEvery)
	return p
}

// leastPeriod is the shortest time that a field of a PoolConfig can have.
const leastPeriod = time.Second

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
			err = errors.New("it must be a whole number")
		}
		return err
	}
}

func period(of func(*PoolConfig) *Duration) func(*PoolConfig, string) error {
	return func(c *PoolConfig, text string) error {
		if err := of(c).UnmarshalText([]byte(text)); err != nil {
			return err
		}
		if time.Duration(*of(c)) < leastPeriod {
			return fmt.Errorf("it must be %s or more", leastPeriod)
		}
		return nil
	}
}

// ParsePool reads a configuration such as "min=5,max=50,warmup=10,idle=300s,age=3600s,check=30s", and
// completes it. Each field can be left out. A time without a unit is in seconds.
func ParsePool(text string) (PoolConfig, error) {
	var c PoolConfig
	var wrong []string
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(part, "=")
		set := poolFields[name]
		if !ok || set == nil {
			wrong = append(wrong, fmt.Sprintf("%q is no setting; write NAME=VALUE with the names %s, such as min=5,max=50",
				part, strings.Join(slices.Sorted(maps.Keys(poolFields)), ", ")))
			continue
		}
		if seen[name] {
			wrong = append(wrong, fmt.Sprintf("%s: %s is there twice", part, name))
			continue
		}
		seen[name] = true
		if err := set(&c, value); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", part, err))
		}
	}
	if wrong == nil { // the bounds depend on each other
		c = c.withDefaults()
		for _, err := range c.problems("") {
			wrong = append(wrong, err.Error())
		}
	}
	if wrong != nil {
		return c, errors.New(strings.Join(wrong, "; "))
	}
	return c, nil
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
	// Misses are the new sandboxes without a blank, by the reason: "empty" if no blank was ready, "stale" if
	// three blanks could not be used any more, "place" for a mount point in a directory of the host, "broken"
	// if the blank broke during the claim, "rule" if the user's rule has no blanks, "snapshot" for the files
	// of a snapshot, "request" for a part of the request that a claim does not know, or the field of the
	// configuration that no blank can have, such as "limits" for a disk in memory that is larger than the
	// default memory.
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
