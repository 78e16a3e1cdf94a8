package spec

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestPoolSettingsAreRead(t *testing.T) {
	second := Duration(time.Second)
	defaults := PoolConfig{Min: 5, Max: 50, WarmUp: 10, IdleTimeout: 300 * second, MaxAge: 3600 * second, CheckEvery: 30 * second}
	with := func(change func(c *PoolConfig)) PoolConfig {
		c := defaults
		change(&c)
		return c
	}
	for text, want := range map[string]PoolConfig{
		"max=50": defaults,
		"max=3":  with(func(c *PoolConfig) { c.Min, c.Max, c.WarmUp = 3, 3, 3 }),
		"min=60": with(func(c *PoolConfig) { c.Min, c.Max, c.WarmUp = 60, 60, 60 }),
		"min=1,max=2,warmup=2,idle=20,age=1h30m,check=1s": {
			Min: 1, Max: 2, WarmUp: 2, IdleTimeout: 20 * second, MaxAge: 5400 * second, CheckEvery: second,
		},
	} {
		got, err := ParsePool(text)
		if err != nil || got != want {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
		if again, err := ParsePool(got.String()); err != nil || again != got {
			t.Errorf("%s is written as %s, and read as %+v, %v", text, got, again, err)
		}
	}
}

func TestWrongPoolSettingsAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                         `"" is no setting; write NAME=VALUE with the names age, check, idle, max, min, warmup, such as min=5,max=50`,
		"min=5,most=6":             `"most=6" is no setting; write NAME=VALUE with the names age, check, idle, max, min, warmup, such as min=5,max=50`,
		"min=5,min=6":              "min=6: min is there twice",
		"min=0":                    "min=0: it must be 1 or more",
		"max=many":                 "max=many: it must be a whole number",
		"min=1.5":                  "min=1.5: it must be a whole number",
		"min=1.5,idle=0,max=0":     "min=1.5: it must be a whole number; idle=0: it must be 1s or more; max=0: it must be 1 or more",
		"idle=0":                   "idle=0: it must be 1s or more",
		"age=999ms":                "age=999ms: it must be 1s or more",
		"check=soon":               `check=soon: duration "soon": write it like 500ms, 30s, 1m30s, or as a number of seconds`,
		"max=2000":                 "max: 2000 is not between 1 and 1000",
		"min=2000":                 "min: 2000 is not between 1 and the max of 1000",
		"warmup=8,min=9,max=7":     "min: 9 is not between 1 and the max of 7; warmup: 8 is not between 1 and the max of 7",
		"warmup=8,max=2000,min=-1": "min=-1: it must be 1 or more",
	} {
		for range 10 { // always in the same order
			if _, err := ParsePool(text); err == nil || err.Error() != want {
				t.Errorf("%s: %v", text, err)
				break
			}
		}
	}
}

func TestEachMistakeInAPoolIsNamed(t *testing.T) {
	_, err := PoolConfig{Min: 3, Max: 2, IdleTimeout: -1, CheckEvery: 1}.Complete()
	const want = "pool.min: 3 is not between 1 and the max of 2|pool.idle: -1ns is less than 1s|pool.check: 1ns is less than 1s"
	if err == nil || strings.ReplaceAll(err.Error(), "\n", "|") != want || !errors.As(err, new(*FieldError)) {
		t.Errorf("got %v", err)
	}
}
