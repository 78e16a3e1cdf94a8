package integration

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
)

// A joinStorm is a sandbox with files in two places. Each turn a transaction changes all files, and tells
// it in /tmp, which is no part of the transaction. A writer beside it then waits for the first change,
// looks at all files, and writes to some of them.
type joinStorm struct {
	*sandboxes
	t     *testing.T
	files int // in each place
	dirs  [2]string
	turn  int
	// was is the content of the files before the turn.
	was string
}

// newJoinStorm makes the sandbox c.
func newJoinStorm(t *testing.T, files int) *joinStorm {
	t.Helper()
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	tree := t.TempDir()
	s.up("c", "--overlay", tree, "--cwd", "/workspace", "--disk", "8g", "--files", "1000000")
	j := &joinStorm{sandboxes: s, t: t, files: files, dirs: [2]string{"/workspace/w", tree + "/w"}}
	s.sh("c", "mkdir "+strings.Join(j.dirs[:], " ")+"; "+j.fill("0"))
	j.was = j.look()
	return j
}

// fill is a line that writes a text to all files.
func (j *joinStorm) fill(text string) string {
	return fmt.Sprintf(`for d in %s %s; do seq -f $d/f%%.0f 0 %d | xargs -n 500 sh -c 'echo %s | tee "$@" > /dev/null' sh; done`,
		j.dirs[0], j.dirs[1], j.files-1, text)
}

// look counts the files by content.
func (j *joinStorm) look() string { return j.sh("c", j.count()) }

func (j *joinStorm) count() string {
	return fmt.Sprintf(`for d in %s %s; do (cd $d; echo f* | xargs cat); done | LC_ALL=C sort | uniq -c | tr -s " "`, j.dirs[0], j.dirs[1])
}

// begin starts the writer of the next turn, and returns the arguments of the turn's transaction.
func (j *joinStorm) begin() []string {
	j.t.Helper()
	j.turn++
	line := strings.NewReplacer("%A", j.dirs[0], "%B", j.dirs[1], "%N", fmt.Sprint(j.turn), "%COUNT", j.count()).Replace(`
		until [ -e /tmp/filled.%N ] || [ -e /tmp/stop.%N ]; do sleep 0.02; done
		x=; y=
		until [ "$x" = %N ] || [ "$y" = %N ]; do
			[ ! -e /tmp/stop.%N ] || { touch /tmp/over.%N; exit; }
			read x < %A/f0; read y < %B/f0
		done
		(%COUNT) > /tmp/seen.%N
		for d in %A %B; do for f in $d/f0 $d/f1 $d/f*5; do echo other > $f; echo $f >> /tmp/wrote.%N; done; done
		touch /tmp/over.%N`)
	if got := j.exec("--detach", "c", "sh", "-c", line); got.code != 0 {
		j.t.Fatalf("writer: %+v", got)
	}
	return []string{"exec", "--transaction", "c", "sh", "-c", j.fill(fmt.Sprint(j.turn)) + fmt.Sprintf("; touch /tmp/filled.%d; echo done", j.turn)}
}

// end ends the turn of a transaction that was killed: it lets the next command finish the join, and
// checks that the transaction has joined as a whole or not at all, that the writer has seen no mix, and
// that no write of the writer is lost. It returns whether the transaction has joined.
func (j *joinStorm) end(at string) bool {
	j.t.Helper()
	if j.turn%4 == 0 {
		if got := run(j.t, j.command("state", "c")); !strings.Contains(got.stdout, `"running"`) {
			j.t.Fatalf("%s: the state is %+v", at, got)
		}
	}
	time.Sleep(time.Duration(rand.N(60)) * time.Millisecond) // others can write before the next command
	out := j.sh("c", strings.ReplaceAll(`sleep 0.05; touch /tmp/stop.%; until [ -e /tmp/over.% ]; do sleep 0.01; done
		cat /tmp/wrote.% 2>/dev/null | wc -l; cat /tmp/seen.% 2>/dev/null | tr "\n" ";"; echo; `, "%", fmt.Sprint(j.turn))+j.count())
	var wrote int
	count, out, _ := strings.Cut(out, "\n")
	seen, now, _ := strings.Cut(out, "\n")
	if _, err := fmt.Sscan(count, &wrote); err != nil {
		j.t.Fatalf("%s: the writer tells %q", at, out)
	}
	whole := fmt.Sprintf(" %d %d", 2*j.files, j.turn)
	switch {
	case wrote == 0 && now == j.was:
		return false
	case wrote == 0 && now == whole+"\n":
	case wrote > 0 && seen != whole+";":
		j.t.Fatalf("%s: a look that began after the join saw %q, want %q", at, seen, whole)
	case wrote > 0 && now == fmt.Sprintf(" %d %d\n %d other\n", 2*j.files-wrote, j.turn, wrote):
	default:
		j.t.Fatalf("%s: there is %q, the writer wrote %d files; before there was %q", at, now, wrote, j.was)
	}
	j.was = now
	return true
}

// Nobody writes between the kill of a join and its end. Nobody sees a part of it.
func TestAJoinThatIsKilledAtFailpointsLosesNoWrites(t *testing.T) {
	files, of, alike := 8, 50, 20
	if os.Getenv(failpointsVariable) == "all" {
		files, of, alike = 1000, 1, 2
	}
	j := newJoinStorm(t, files)
	trace, err := failpoint.Run(j.command(j.begin()...), 0, patience)
	if err != nil {
		t.Fatal(err)
	}
	j.end("not killed")
	points := kindsOfPoints(trace.Points, alike)
	kills, joins := 0, 0
	for i := rand.N(min(of, len(points))); i < len(points); i += of {
		trace, err := failpoint.Run(j.command(j.begin()...), points[i], patience)
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			j.strikeAgain(t)
		}
		if j.end(fmt.Sprintf("killed at %d, %v", points[i], trace.Points[len(trace.Points)-1])) {
			joins++
		}
		if trace.Killed {
			kills++
		}
	}
	t.Logf("%d files: %d failpoints of %d kinds, %d kills, %d times the transaction joined", 2*files, len(trace.Points), len(points), kills, joins)
	if kills == 0 {
		t.Error("never killed")
	}
}

// So for kills at calls everywhere in a join.
func TestAJoinThatIsKilledAtItsCallsLosesNoWrites(t *testing.T) {
	files, times := 100, 10
	if os.Getenv(failpointsVariable) == "all" {
		files, times = 1000, 500
	}
	j, k := newJoinStorm(t, files), newCallKiller(t)
	calls := 0
	for range 2 { // the second time all files are modified ones
		calls, _ = k.run(t, j.command(j.begin()...), never)
		j.end("not killed")
	}
	kills, again, joins := 0, 0, 0
	// Such steps meet all parts of the join alike, for any number of turns.
	for n, i := rand.N(calls), 0; i < times; n, i = (n+calls*618/1000)%calls, i+1 {
		at := fmt.Sprintf("killed at call %d of %d", n+1, calls)
		if _, killed := k.run(t, j.command(j.begin()...), n+1); killed {
			kills++
		}
		if i%3 == 0 { // the command that finishes the join
			m := 1 + rand.N(max(60, calls-n))
			if _, killed := k.run(t, j.command("exec", "c", "true"), m); killed {
				again++
				at += fmt.Sprint(", and again at ", m)
			}
		}
		if j.end(at) {
			joins++
		}
	}
	t.Logf("%d files: %d calls, %d kills, %d second kills, %d times the transaction joined", 2*files, calls, kills, again, joins)
	if kills == 0 {
		t.Error("never killed")
	}
}

// kindsOfPoints are the numbers of the failpoints without those that repeat for each of many files: of
// the points with the same call at the same moment the first ones remain, the last, and two between.
func kindsOfPoints(points []failpoint.Point, first int) (some []int) {
	all := map[string][]int{}
	var order []string
	for i, p := range points {
		kind := fmt.Sprint(p.Call, p.After)
		if all[kind] == nil {
			order = append(order, kind)
		}
		all[kind] = append(all[kind], i+1)
	}
	for _, kind := range order {
		same := all[kind]
		n := len(same)
		if n <= first+3 {
			some = append(some, same...)
			continue
		}
		some = append(some, same[:first]...)
		some = append(some, same[first+(n-first)/3], same[first+(n-first)*2/3], same[n-1])
	}
	return some
}

// A join that is killed at any time, also between two system calls.
func TestAJoinThatIsKilledAtRandomLosesNoWrites(t *testing.T) {
	files, times := 500, 4
	if os.Getenv(failpointsVariable) == "all" {
		files, times = 10_000, 100
	}
	j := newJoinStorm(t, files)
	lasts := j.killWithin(0) // not killed
	if !j.end("not killed") {
		t.Fatal("the transaction did not join")
	}
	joins := 0
	for i := range times {
		after := rand.N(lasts)
		j.killWithin(after)
		if j.end(fmt.Sprintf("turn %d, killed after %v of %v", i, after, lasts)) {
			joins++
		}
	}
	t.Logf("%d files: a join lasts %v; %d kills, %d times the transaction joined", 2*files, lasts, times, joins)
}

// killWithin begins a turn, and kills the transaction a time after its command has ended. With 0 it
// kills nothing, and returns how long the join lasts.
func (j *joinStorm) killWithin(after time.Duration) time.Duration {
	j.t.Helper()
	cmd := j.command(j.begin()...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		j.t.Fatal(err)
	}
	read := bufio.NewReader(out)
	line, err := read.ReadString('\n')
	if line != "done\n" {
		j.t.Errorf("the command says %q: %v", line, err)
	}
	begun := time.Now()
	if after > 0 {
		time.Sleep(after)
		_ = cmd.Process.Kill() // it may have ended
	}
	_, _ = io.Copy(io.Discard, read)
	err = cmd.Wait()
	if after == 0 && err != nil {
		j.t.Fatal(err)
	}
	return time.Since(begun)
}

// The number of system calls decides how long a join lasts.
func TestAJoinMakesFewCallsForAFile(t *testing.T) {
	j := newJoinStorm(t, 100)
	trace, err := failpoint.Run(j.command(j.begin()...), 0, patience)
	if err != nil {
		t.Fatal(err)
	}
	if !j.end("not killed") {
		t.Fatal("the transaction did not join")
	}
	// A modified file is written twice: the new one, and the old one for undo.
	most := map[string]int{"openat": 2, "pwrite64": 2, "fchown": 2, "fchmod": 0, "utimensat": 2, "renameat2": 1}
	calls := map[string]int{}
	for _, p := range trace.Points {
		if !p.After {
			calls[p.Call]++
		}
	}
	for name, times := range most {
		if calls[name] > 2*j.files*times+100 {
			t.Errorf("%s: %d calls for %d files, want at most %d for a file", name, calls[name], 2*j.files, times)
		}
	}
}

// A launcher that gets SIGTERM twice while a transaction joins ends after the join. The client gets the
// status of the command.
func TestALauncherThatEndsFinishesAJoin(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	for _, signals := range []int{1, 2} {
		name := fmt.Sprint("box", signals)
		s.up(name)
		l := s.launcher(filepath.Join(t.TempDir(), "s"), "--grace", "1ms")
		cmd := exec.Command(binary(t), "--socket", l.socket, "exec", "--transaction", name, "sh", "-c",
			"i=0; while [ $i -lt 3000 ]; do echo $i > f$i; i=$((i+1)); done; echo done")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the transaction to join", func() bool {
			return strings.Contains(content(t, filepath.Join(s.root, "@sandboxes", name, "sandbox.json")), `"join"`)
		})
		for range signals {
			kill(t, l.cmd.Process.Pid, syscall.SIGTERM)
			time.Sleep(10 * time.Millisecond) // else the kernel merges both
		}
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("after %d signals the client ended with %v", signals, err)
		}
		l.wait()
		if got := s.sh(name, "ls | wc -l"); got != "3000\n" {
			t.Errorf("after %d signals there are %s files", signals, got)
		}
	}
}

// exec names the cause of its wait on a terminal.
func TestALongJoinIsToldOnATerminal(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	s.up("box")
	state, err := statedir.Hold(filepath.Join(s.root, "@sandboxes"), "box")
	if err != nil {
		t.Fatal(err)
	}
	release := sync.OnceFunc(state.Release)
	t.Cleanup(release)
	term, p := onTerminal(t, s.command("exec", "--transaction", "box", "sh", "-c", "echo new > file"))
	const says = "the command succeeded; waiting until all its writes have joined the files of box"
	eventually(t, "the message", func() bool { return strings.Contains(term.output(), says) })
	release()
	if got := p.wait(); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := s.sh("box", "cat file"); got != "new\n" {
		t.Errorf("the file has %q", got)
	}
}
