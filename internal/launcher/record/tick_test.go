package record

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What is written before a moment is not written since, and what is written after it
// is, however soon, and whether or not the file system has fine times (which it gives
// to files whose times somebody has looked at).
func TestWhatIsWrittenSinceATickIsTold(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) time.Time {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil {
			t.Fatal(err)
		}
		return time.Unix(st.Ctim.Unix())
	}
	for i := range 50 {
		write("old")
		before := write("old")
		since := Now()
		if before.After(since) {
			t.Fatalf("written before %v, at %v", since, before)
		}
		if err := AwaitTick(t.Context(), since); err != nil {
			t.Fatal(err)
		}
		if after := write(strconv.Itoa(i)); !after.After(since) {
			t.Fatalf("written after %v, at %v", since, after)
		}
	}
}
