package jobs

import (
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// A clock that is set ends no detached command before its time, nor later.
func TestSetClockDoesNotChangeHowOldAnExecIs(t *testing.T) {
	boot, err := process.SinceBoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, jump := range []time.Duration{-time.Hour, time.Hour} {
		dir := t.TempDir()
		written := execRecord{Args: []string{"true"}, Started: time.Now().Add(jump), Boot: boot - time.Minute}
		if err := written.write(dir); err != nil {
			t.Fatal(err)
		}
		r, err := readExecRecord(dir)
		if age := time.Since(r.Started); err != nil || age < time.Minute || age > 2*time.Minute {
			t.Errorf("a clock set by %v: %v old, %v", jump, age, err)
		}
	}
}
