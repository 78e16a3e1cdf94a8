package jobs

import (
	"os"
	"testing"
	"time"
)

// After the clock was set back nobody knows since when the output could be read.
func TestToldOutputHasAnAge(t *testing.T) {
	d := &detachedExec{Dir: t.TempDir()}
	if age := d.age(); age < 0 || age > time.Minute {
		t.Errorf("new, it is %v old", age)
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(d.Dir, later, later); err != nil {
		t.Fatal(err)
	}
	if age := d.age(); age != ToldTime {
		t.Errorf("of a later time, it is %v old", age)
	}
}
