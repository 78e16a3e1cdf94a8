package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func wantEqual[T any](t testing.TB, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// livesOn makes a script tell its status at its end and live on. When a process
// ends, whoever passes on what it has printed may stop before that is all,
// whatever the runtime: containerd's shim gives it two seconds, its CRI plugin
// none.
func livesOn(script string) string {
	return "(" + script + "\n)\nstatus=$?; echo; echo status $status; exec sleep 1000"
}

var statusTold = regexp.MustCompile(`(?s)^(.*)\nstatus (\d+)\n$`)

// told waits until a script that lives on has told its status, and returns what it
// had printed before and that.
func told(t testing.TB, printed func() string) (text string, status int) {
	t.Helper()
	var all string
	var found []string
	defer func() {
		if found == nil {
			t.Logf("it printed %q", all)
		}
	}()
	eventually(t, "the script tells its status", func() bool {
		all = printed()
		found = statusTold.FindStringSubmatch(all)
		return found != nil
	})
	status, err := strconv.Atoi(found[2])
	if err != nil {
		t.Fatal(err)
	}
	return found[1], status
}

// capabilities reads the set from a line of /proc/PID/status.
func capabilities(t testing.TB, line string) uint64 {
	t.Helper()
	_, hex, _ := strings.Cut(strings.TrimSpace(line), "\t")
	set, err := strconv.ParseUint(hex, 16, 64)
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return set
}

func link(t testing.TB, path string) string {
	t.Helper()
	target, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// cgroupsOf returns a process's groups by their controllers, cgroups(7).
func cgroupsOf(t testing.TB, pid int) map[string]string {
	t.Helper()
	groups := map[string]string{}
	for line := range strings.Lines(content(t, fmt.Sprintf("/proc/%d/cgroup", pid))) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			groups[f[1]] = f[2]
		}
	}
	return groups
}

// number returns the value of a key in a file of lines of keys and values.
func number(t testing.TB, path, key string) int {
	t.Helper()
	for line := range strings.Lines(content(t, path)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %s", path, key)
	return 0
}

// resize sets a terminal's size and waits until it shows that in the words of
// stty. An engine's client looks at the size before it listens for changes, and
// misses one in between until the next: here, of the pixels.
func resize(t testing.TB, term *terminal, rows, columns uint16) {
	t.Helper()
	size := unix.Winsize{Row: rows, Col: columns}
	text := fmt.Sprintf("%d %d", rows, columns)
	eventually(t, "terminal shows "+text, func() bool {
		size.Xpixel++
		if err := unix.IoctlSetWinsize(int(term.master.Fd()), unix.TIOCSWINSZ, &size); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // not to keep the client busy with it
		return strings.Contains(term.output(), text)
	})
}

// removeOthers removes the files of a pattern that are not among the known.
func removeOthers(t testing.TB, pattern string, known []string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(known, f) {
			if err := os.Remove(f); err != nil {
				t.Error(err)
			}
		}
	}
}
