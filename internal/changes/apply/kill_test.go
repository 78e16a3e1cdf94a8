package apply

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// An interruptedApply is an apply that is killed, each time on the same tree made anew.
type interruptedApply struct {
	*box
	before, after []string // the tree as it was, and as it is wanted
	anew          func()   // makes the tree what it was
}

const (
	killedHost = `echo old > modified; echo gone > deleted; mkdir -p opaque/x dir gone/a turned
		echo 1 > opaque/x/y; echo 2 > gone/a/b; echo 3 > turned/t; echo 4 > turns; echo 5 > dir/f`
	killedWork = `echo new > modified; rm deleted; rm -r opaque; mkdir opaque; echo o > opaque/n; rm -r gone
		mkdir -p made/in; echo m > made/in/m; ln made/in/m link; chmod 2711 dir; touch -d 2001-01-01 dir; echo f > dir/f
		rm -r turned; ln -s x turned; rm turns; mkdir turns; chmod 555 turns; mkfifo fifo`
)

func (b *box) interruptedApply() *interruptedApply {
	b.run(killedWork)
	b.xattr("dir", "user.colour", "blue")
	b.xattr("made/in/m", "user.colour", "red")
	// The tree is made anew, with other directories.
	if err := unix.Lsetxattr(filepath.Join(b.upper, "dir"), originXattr, nil, 0); err != nil {
		b.t.Fatal(err)
	}
	k := &interruptedApply{box: b, after: describeTree(b.t, b.merged), before: describeTree(b.t, b.tree)}
	return k
}

func newInterruptedApply(t *testing.T) *interruptedApply {
	k := newBox(t, killedHost).interruptedApply()
	sh(t, k.tree, "cp -a . ../tree.pristine")
	k.anew = func() { sh(t, k.tree, "find . -mindepth 1 -delete; cp -a ../tree.pristine/. .") }
	return k
}

// newLiveInterruptedApply makes an interruptedApply with an overlay as its tree.
func newLiveInterruptedApply(t *testing.T) *interruptedApply {
	b := newBox(t, killedHost)
	k := b.transaction().interruptedApply()
	sh(t, "/", "umount "+k.merged)
	*k.gone = true
	k.anew = func() {
		sh(t, filepath.Dir(b.upper), "umount merged; rm -r upper work; mkdir upper work")
		*b.gone = true
		b.mount()
	}
	k.anew()
	return k
}

func (k *interruptedApply) command(role string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", k.tree, k.upper)
	// Less of the runtime's own threads makes more of the points the product's.
	cmd.Env = append(os.Environ(), roleVariable+"="+role, "GOMAXPROCS=1", "GOGC=off")
	cmd.Stderr = os.Stderr
	return cmd
}

func (k *interruptedApply) strike(role string, n int) failpoint.Trace {
	k.t.Helper()
	trace, err := failpoint.Run(k.command(role), n, 30*time.Second)
	if err != nil {
		k.t.Fatal(err)
	}
	return trace
}

// settled holds that the tree is as before or as wanted, and says which.
func (k *interruptedApply) settled(what string) string {
	k.t.Helper()
	k.clean()
	now := describeTree(k.t, k.tree)
	switch {
	case slices.Equal(now, k.before):
		return "before"
	case slices.Equal(now, k.after):
		return "after"
	}
	k.t.Errorf("%s: neither as before nor as wanted", what)
	k.wantSame(k.after, now)
	return "neither"
}

func TestKilledAnywhereItIsWholeAgain(t *testing.T) {
	testhost.Long(t)
	t.Run("tree", func(t *testing.T) { newInterruptedApply(t).anywhere(1) })
	t.Run("live overlay", func(t *testing.T) { newLiveInterruptedApply(t).anywhere(4) })
}

// anywhere kills at every so many-th failpoint.
func (k *interruptedApply) anywhere(every int) {
	t := k.t
	undisturbed := k.strike("apply", 0)
	if got := k.settled("undisturbed"); got != "after" {
		t.Fatalf("undisturbed, the tree is as %s", got)
	}
	ends := map[string]int{}
	for n := 1; n <= len(undisturbed.Points); n += every {
		k.anew()
		trace := k.strike("apply", n)
		what := fmt.Sprintf("%d, %v", n, trace.Points[len(trace.Points)-1])
		tree := openDir(t, k.tree)
		_, err := Recover(tree, false, nil)
		tree.Close() // or an overlay could not be unmounted
		if err != nil {
			t.Fatalf("killed at %s: %v", what, err)
		}
		ends[k.settled(what)]++
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d failpoints: %v", len(undisturbed.Points), ends)
	if ends["before"] == 0 || ends["after"] == 0 {
		t.Error("it always ended the same way")
	}
}

func TestKilledAgainWhileItRecovers(t *testing.T) {
	k := newInterruptedApply(t)
	points := len(k.strike("apply", 0).Points)
	kills := 0
	for n := 1; n <= points; n += 5 {
		k.anew()
		k.strike("apply", n)
		for m := 1 + n%5; ; m += 5 {
			if !k.strike("recover", m).Killed {
				break
			}
			kills++
		}
		if _, err := Recover(openDir(t, k.tree), false, nil); err != nil {
			t.Fatalf("killed at %d and again: %v", n, err)
		}
		k.settled(fmt.Sprint(n))
		if t.Failed() {
			t.FailNow()
		}
	}
	if kills < points/5 {
		t.Errorf("%d kills of %d failpoints", kills, points)
	}
	t.Logf("%d kills while recovering", kills)
}

// What is killed after its record was made, and finds the tree changed, puts back
// what it has done.
func TestKilledAndTheTreeChangedIsRolledBack(t *testing.T) {
	k := newInterruptedApply(t)
	points := k.strike("apply", 0).Points
	rolledBack := 0
	for n := 1; n <= len(points); n += 4 {
		k.anew()
		k.strike("apply", n)
		k.host("if [ $(cat modified) = old ]; then echo other > modified; fi")
		now := slices.DeleteFunc(slices.Clone(k.before), func(l string) bool { return l[:10] == `"modified"` })
		if _, err := Recover(openDir(t, k.tree), false, nil); err != nil {
			t.Fatalf("killed at %d: %v", n, err)
		}
		k.clean()
		got := slices.DeleteFunc(describeTree(t, k.tree), func(l string) bool { return l[:min(10, len(l))] == `"modified"` })
		content, err := os.ReadFile(k.tree + "/modified")
		if err != nil {
			t.Fatal(err)
		}
		switch string(content) {
		case "other\n":
			rolledBack++
			k.wantSame(now, got)
		case "new\n":
			k.settled(fmt.Sprint(n))
		default:
			t.Errorf("killed at %d, what others wrote is %q", n, content)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	if rolledBack == 0 {
		t.Error("never rolled back")
	}
}

// hostEdits are edits of the host after an apply was killed. An edit skips a missing file.
var hostEdits = []string{
	"echo host >> modified",
	"echo host > modified.new; mv modified.new modified",
	"rm -f modified",
	"echo host > deleted",
	"[ ! -d made/in ] || echo host > made/in/host",
	"[ ! -d made/in ] || echo host >> made/in/m",
	"[ ! -e link ] || echo host >> link",
	"[ ! -d opaque ] || echo host > opaque/host",
	"[ ! -f opaque/n ] || echo host >> opaque/n",
	"[ ! -d gone/a ] || echo host > gone/a/host",
	"[ ! -d gone/a ] || echo host >> gone/a/b",
	"[ -e gone ] || { mkdir gone; echo host > gone/host; }",
	"mv dir away; mkdir dir; echo host > dir/f",
	"echo host >> dir/f",
	"chmod 700 dir",
	"rm -rf turned; mkdir turned; echo host > turned/host",
	"rm -rf turns; echo host > turns",
	"[ -d made ] || { mkdir made; echo host > made/host; }",
}

// byPath are the lines of look by their paths, without the runtime's own files.
func byPath(lines []string) map[string]string {
	all := map[string]string{}
	for _, line := range lines {
		quoted, err := strconv.QuotedPrefix(line)
		path, _ := strconv.Unquote(quoted)
		if err == nil && !strings.HasPrefix(path, reservedPrefix) {
			all[path] = line
		}
	}
	return all
}

// An apply is killed anywhere, and then the host edits the tree. Each edit stays. All other
// paths are as before the apply, or all are as after it, except named paths.
func TestKilledAndThenEditedLosesNothing(t *testing.T) {
	k := newInterruptedApply(t)
	points := len(k.strike("apply", 0).Points)
	ends := map[string]int{}
	first := rand.IntN(len(hostEdits)) // each run has others at a failpoint
	for n := 1; n <= points; n++ {
		edit := hostEdits[(first+n*7+n/len(hostEdits))%len(hostEdits)]
		t.Run(fmt.Sprintf("%d, %s", n, edit), func(t *testing.T) {
			k.t = t
			k.anew()
			k.strike("apply", n)
			killed := byPath(describeTree(t, k.tree))
			k.host(edit)
			edited := byPath(describeTree(t, k.tree))
			done, err := Recover(openDir(t, k.tree), false, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range done.Kept { // the host has taken the place
				if err := os.RemoveAll(filepath.Join(k.tree, name)); err != nil {
					t.Error(err)
				}
			}
			k.clean()
			ends[k.settledBut(killed, edited, done)]++
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d failpoints: %v", points, ends)
}

// settledBut checks the claim of TestKilledAndThenEditedLosesNothing after a recovery, and
// returns the state of the tree.
func (k *interruptedApply) settledBut(killed, edited map[string]string, done Recovery) string {
	k.t.Helper()
	now, before, after := byPath(describeTree(k.t, k.tree)), byPath(k.before), byPath(k.after)
	hosts := map[string]bool{}
	for path, line := range edited {
		if killed[path] == line {
			continue
		}
		hosts[path] = true
		if now[path] != line && !strings.Contains(line, " is ") {
			k.t.Errorf("lost of the host's: %s\nis now: %s", line, now[path])
		}
	}
	for path := range killed {
		hosts[path] = hosts[path] || edited[path] == ""
	}
	asBefore, asAfter := "", ""
	for _, paths := range []map[string]string{before, after} {
		for path := range paths {
			if before[path] == after[path] || withAny(path, hosts) || slices.ContainsFunc(slices.Collect(maps.Keys(hosts)), func(h string) bool { return hosts[h] && isBelow(h, path) }) {
				continue
			}
			stays := slices.ContainsFunc(done.Stays, func(s string) bool { return isBelow(path, s) || isBelow(s, path) })
			switch {
			case stays:
			case now[path] == before[path]:
				asBefore = path
			case now[path] == after[path]:
				asAfter = path
			}
		}
	}
	if asBefore != "" && asAfter != "" {
		k.t.Errorf("%q is as before and %q as wanted, and no path is named: %+v", asBefore, asAfter, done)
	}
	switch {
	case len(done.Stays) > 0:
		return "named"
	case asAfter != "":
		return "after"
	}
	return "before"
}
