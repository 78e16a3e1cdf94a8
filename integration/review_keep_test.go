package integration

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A reviewSession is "do --review" on a terminal. Its command changes one file of a home and
// makes another.
type reviewSession struct {
	*terminal
	t    *testing.T
	s    *sandboxes
	p    *testProcess
	home string
}

// twoChanges is a command that makes two changes, and then runs other commands.
func twoChanges(home string, then ...string) []string {
	script := "cd " + home + "; echo mine > README; echo new > new; " + strings.Join(then, "; ")
	return []string{"--overlay", home, "--", "sh", "-c", script}
}

// newReviewSession starts the program on a terminal. The test's end removes the sandbox.
func newReviewSession(t *testing.T, s *sandboxes, home string, args ...string) *reviewSession {
	t.Helper()
	return reviewSessionOf(t, s, home, s.command(append([]string{"do"}, args...)...))
}

func reviewSessionOf(t *testing.T, s *sandboxes, home string, cmd *exec.Cmd) *reviewSession {
	t.Helper()
	pager := filepath.Join(t.TempDir(), "pager")
	if err := os.WriteFile(pager, []byte("#!/bin/sh\necho paging\nread line </dev/tty\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "PAGER="+pager, "NO_COLOR=1")
	t.Cleanup(func() {
		for _, name := range s.names() {
			s.downIfUp(name)
		}
	})
	term, p := onTerminal(t, cmd)
	return &reviewSession{term, t, s, p, home}
}

// names are the sandboxes of the state root.
func (s *sandboxes) names() (names []string) {
	found, err := filepath.Glob(filepath.Join(s.root, "@sandboxes", "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, dir := range found {
		names = append(names, filepath.Base(dir))
	}
	return names
}

// answers types each answer after the text that comes before it.
func (r *reviewSession) answers(pairs ...string) {
	r.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		r.showsAnew(pairs[i])
		r.typeIn(r.t, pairs[i+1])
	}
}

// showsAnew waits for a text, and forgets all up to it.
func (r *reviewSession) showsAnew(text string) {
	r.t.Helper()
	r.shows(r.t, text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Next(strings.Index(r.seen.String(), text) + len(text))
}

// keeps says that the program ends, and that the sandbox is up with its changes.
func (r *reviewSession) keeps(changed ...string) {
	r.t.Helper()
	r.p.wait()
	names := r.s.names()
	if len(names) != 1 {
		r.t.Fatalf("sandboxes %q, want one that was kept; the terminal shows %q", names, r.output())
	}
	got := run(r.t, r.s.command("changes", names[0]))
	for _, name := range changed {
		if !strings.Contains(got.stdout, filepath.Join(r.home, name)) {
			r.t.Errorf("%s is no change of the sandbox that was kept: %+v", name, got)
		}
	}
	if got := run(r.t, r.s.command("exec", names[0], "true")); got.code != 0 {
		r.t.Errorf("the sandbox that was kept: %+v", got)
	}
}

// wayBack is a command as the program has printed it.
var wayBack = regexp.MustCompile(`(?m)^  (sandbox-runtime .*changes .*?)\r?$`)

// saysHowToComeBack says that a command that was printed works.
func (r *reviewSession) saysHowToComeBack(changed ...string) {
	r.t.Helper()
	<-r.closed
	found := wayBack.FindStringSubmatch(r.output())
	if found == nil {
		r.t.Fatalf("no command that comes back: %q", r.output())
	}
	cmd := exec.Command("sh", "-c", found[1])
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary(r.t))+":"+os.Getenv("PATH"))
	got := run(r.t, cmd)
	for _, name := range changed {
		if !strings.Contains(got.stdout, filepath.Join(r.home, name)) {
			r.t.Errorf("%s: %+v, without %s", found[1], got, name)
		}
	}
}

// removes says that the program ends with a status, and leaves no sandbox.
func (r *reviewSession) removes(status int) {
	r.t.Helper()
	if got := r.p.wait(); got.code != status {
		r.t.Errorf("status %d, want %d; the terminal shows %q", got.code, status, r.output())
	}
	if names := r.s.names(); len(names) > 0 {
		r.t.Errorf("left are the sandboxes %q", names)
	}
}

// question is the main one.
const question = "[d]iscard? "

// An end is a way in which a person leaves a review without an answer.
type end struct {
	name string
	do   func(r *reviewSession)
	// status of the program where a question was open; -1: any.
	status int
}

func ends() []end {
	sends := func(s syscall.Signal) func(r *reviewSession) {
		return func(r *reviewSession) {
			if err := r.p.cmd.Process.Signal(s); err != nil {
				r.t.Error(err)
			}
		}
	}
	return []end{
		{"Ctrl-C", func(r *reviewSession) { r.typeIn(r.t, "\x03") }, 125},
		{"Ctrl-C again and again", func(r *reviewSession) { r.typeIn(r.t, "\x03\x03\x03") }, 125},
		{"Ctrl-D", func(r *reviewSession) { r.typeIn(r.t, "\x04") }, 0},
		{"SIGTERM", sends(unix.SIGTERM), 125},
		{"SIGHUP", sends(unix.SIGHUP), 125},
		{"hang-up", func(r *reviewSession) { r.master.Close() }, -1},
	}
}

// signalEnds are those that are no keys.
func signalEnds() []end {
	return slices.DeleteFunc(ends(), func(e end) bool { return strings.HasPrefix(e.name, "Ctrl") })
}

// A person can leave at any question and loses nothing.
func TestReviewKeepsWhatNobodyDecidedAbout(t *testing.T) {
	testhost.Long(t)
	steps := map[string][]string{
		"question":  {question, ""},
		"discard":   {question, "\n", "for good? [y/N] ", ""},
		"file":      {question, "s\n", "file (.tar or .patch): ", ""},
		"overwrite": {question, "a\n", "overwrite these files of the host? [y/N] ", ""},
		"pager":     {question, "r\n", "paging", ""},
		"archive":   {question, "s " + filepath.Join(t.TempDir(), "$.patch") + "\n", "save all to a .tar, too? file (Enter: no): ", ""},
	}
	for step, pairs := range steps {
		for _, end := range ends() {
			if step == "pager" && strings.HasPrefix(end.name, "Ctrl") {
				continue // it is the pager's key
			}
			t.Run(step+" "+end.name, func(t *testing.T) {
				s, home := newSandboxes(t), newHome(t)
				// No patch holds the empty directory.
				r := newReviewSession(t, s, home, append([]string{"--review"}, twoChanges(home, "mkdir empty")...)...)
				if step == "overwrite" {
					r.shows(t, question)
					overwrite(t, filepath.Join(home, "README"))
				}
				for i := 0; i < len(pairs); i += 2 {
					r.answers(pairs[i], strings.ReplaceAll(pairs[i+1], "$", end.name))
				}
				end.do(r)
				r.keeps("README", "new")
				if end.name == "hang-up" {
					return
				}
				r.saysHowToComeBack("README", "new")
				if got := r.p.wait(); got.code != end.status {
					t.Errorf("status %d, want %d: %q", got.code, end.status, r.output())
				}
			})
		}
	}
}

// The terminal may go without a signal: its shell ignores SIGHUP, or lives on.
func TestReviewKeepsAfterAHangUpWithoutASignal(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	args := append([]string{"-c", `trap "" HUP; exec "$@"`, "sh"}, s.command(append([]string{"do", "--review"}, twoChanges(home)...)...).Args...)
	r := reviewSessionOf(t, s, home, exec.Command("sh", args...))
	r.shows(t, question)
	r.master.Close()
	r.keeps("README", "new")
}

// A signal that ends the program while the command runs ends the command, and no more.
func TestReviewKeepsWhatASignalToTheCommandLeaves(t *testing.T) {
	for _, end := range signalEnds() {
		t.Run(end.name, func(t *testing.T) {
			s, home := newSandboxes(t), newHome(t)
			r := newReviewSession(t, s, home, append([]string{"--review"}, twoChanges(home, "echo running", "exec sleep 1000")...)...)
			r.shows(t, "running")
			end.do(r)
			r.keeps("README", "new")
			if end.name != "hang-up" {
				r.saysHowToComeBack("README", "new")
			}
		})
	}
}

// The first Ctrl-C is the command's. The second is for a command that does not end.
func TestReviewAfterAnInterruptOfTheCommand(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	r := newReviewSession(t, s, home, append([]string{"--review"}, twoChanges(home, "echo running", "exec sleep 1000")...)...)
	r.answers("running", "\x03", question, "d\n")
	r.removes(130)

	deaf := `trap "echo deaf" INT; echo running; while :; do sleep 0.1; done`
	r = newReviewSession(t, s, home, append([]string{"--review"}, twoChanges(home, deaf)...)...)
	r.answers("running", "\x03", "deaf", "\x03")
	r.keeps("README", "new")
	r.saysHowToComeBack("README", "new")
}

// The same is true of a session on the person's own terminal.
func TestASessionThatHangsUpIsKept(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	r := newReviewSession(t, s, home, "-i", "-t", "--overlay", home, "--cwd", home, "--", "sh")
	r.typeIn(t, "echo typed > typed; echo is $((1+1))\n")
	r.shows(t, "is 2")
	r.master.Close()
	r.keeps("typed")
}

// A killed program leaves the sandbox as --keep does.
func TestReviewKeepsWhenTheProgramIsKilled(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	r := newReviewSession(t, s, home, append([]string{"--review"}, twoChanges(home, "echo running", "exec sleep 1000")...)...)
	r.shows(t, "running")
	r.p.kill()
	r.keeps("README", "new")
}

// Nothing is kept where nothing was changed.
func TestReviewKeepsNoSandboxWithoutAChange(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	r := newReviewSession(t, s, home, "--review", "--overlay", home, "--", "sh", "-c", "echo running; exec sleep 1000")
	r.shows(t, "running")
	if err := r.p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.removes(143)
	r = newReviewSession(t, s, home, "--review", "--overlay", home, "--", "/no/such/program")
	r.removes(127)
}

// An interrupted --apply has applied nothing, and loses nothing.
func TestDoKeepsWhatAnInterruptedApplyLeaves(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	deaf := `trap "echo deaf" TERM; echo running; while :; do sleep 0.1; done`
	r := newReviewSession(t, s, home, append([]string{"--apply"}, twoChanges(home, deaf)...)...)
	for _, text := range []string{"running", "deaf"} {
		r.shows(t, text)
		if err := r.p.cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	r.keeps("README", "new")
	r.saysHowToComeBack("README", "new")
}

// Each key does the same as its word, and no other key discards.
func TestAnswersOfAReview(t *testing.T) {
	const main = question
	tar := filepath.Join(t.TempDir(), "saved.tar")
	for name, test := range map[string]struct {
		pairs []string // of a text and the answer to it
		shows string   // at the end
		kept  bool
		host  string // the README there
	}{
		"d":           {[]string{main, "d\n"}, "discarded", false, "one\ntwo\nthree\n"},
		"Enter":       {[]string{main, "\n", "discard 2 changes for good?", "\n", main, "\n", "for good?", "n\n", main, "k\n"}, "nothing is lost", true, "one\ntwo\nthree\n"},
		"Enter y":     {[]string{main, "\n", "for good?", "y\n"}, "discarded", false, "one\ntwo\nthree\n"},
		"Enter d":     {[]string{main, "\n", "for good?", "d\n"}, "discarded", false, "one\ntwo\nthree\n"},
		"q":           {[]string{main, "q\n"}, "nothing is lost", true, "one\ntwo\nthree\n"},
		"quit":        {[]string{main, "quit\n"}, "nothing is lost", true, "one\ntwo\nthree\n"},
		"garbage":     {[]string{main, "x\n", "is none of these", "", main, "d README\n", "is none of these", "", main, "keep\n"}, "nothing is lost", true, "one\ntwo\nthree\n"},
		"half a line": {[]string{main, "d\x04\x04"}, "nothing is lost", true, "one\ntwo\nthree\n"},
		"a":           {[]string{main, "a\n", "applied 2 changes: 1 created, 1 modified, 0 deleted", "", "README", ""}, "/new", false, "mine\n"},
		"a PATH": {
			[]string{main, "a README\n", "applied 1 change: 0 created, 1 modified", "", "only in the sandbox: 1 change", "", "/new", "", main, "a new\n"},
			"no other change is left", false, "mine\n",
		},
		"r":      {[]string{main, "r\n", "paging", "\n", main, "d\n"}, "discarded", false, "one\ntwo\nthree\n"},
		"s":      {[]string{main, "s\n", "file (", "\n", main, "s\n", "file (", "x.zip\n", "ends in .tar", "", main, "k\n"}, "nothing is lost", true, "one\ntwo\nthree\n"},
		"s FILE": {[]string{main, "s " + tar + "\n"}, "saved to", false, "one\ntwo\nthree\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s, home := newSandboxes(t), newHome(t)
			r := newReviewSession(t, s, home, append([]string{"--review"}, twoChanges(home)...)...)
			r.answers(test.pairs...)
			r.shows(t, test.shows)
			if got := r.p.wait(); got.code != 0 {
				t.Errorf("status %d: %q", got.code, r.output())
			}
			if test.kept {
				r.keeps("README", "new")
			} else {
				r.removes(0)
			}
			if got := content(t, filepath.Join(home, "README")); got != test.host {
				t.Errorf("README on the host is %q, want %q", got, test.host)
			}
		})
	}
}

// Keys that were typed while the command ran answer no question.
func TestKeysBeforeTheQuestionAreNoAnswer(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	r := newReviewSession(t, s, home, append([]string{"--review"}, twoChanges(home, "echo running", "exec sleep 1000")...)...)
	r.answers("running", "d\n")
	r.showsAnew("d\r\n") // the terminal has the keys
	if err := r.p.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	r.answers(question, "k\n")
	r.keeps("README", "new")
}

// A signal while the program works on an answer ends the work, and keeps the sandbox.
func TestReviewKeepsWhatASignalDuringAnAnswerLeaves(t *testing.T) {
	testhost.Long(t)
	saved := filepath.Join(t.TempDir(), "saved.patch")
	for _, answer := range []string{"a", "s " + saved, "r"} {
		for _, end := range signalEnds() {
			t.Run(answer[:1]+" "+end.name, func(t *testing.T) {
				s, home := newSandboxes(t), newHome(t)
				r := newReviewSession(t, s, home, append([]string{"--review"}, twoChanges(home)...)...)
				r.showsAnew(question)
				// The apply compares a file that has changed on the host.
				if err := os.WriteFile(filepath.Join(home, "README"), []byte("host\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				release := leased(t, filepath.Join(home, "README"), func() { r.typeIn(t, answer+"\n") })
				end.do(r)
				eventually(t, "the signal arrives", func() bool { return !pending(t, r.p.cmd.Process.Pid) })
				time.Sleep(time.Second) // for the program to act on the signal, on a busy machine
				release()
				r.keeps("README", "new")
				if exists(saved) {
					t.Error("there is a file")
				}
			})
		}
	}
}

// leased takes a lease on a file, and returns when another process that an action
// starts to work waits for the file's content. The file is free after release.
func leased(t *testing.T, path string, action func()) (release func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	wanted := make(chan os.Signal, 1)
	signal.Notify(wanted, unix.SIGIO)
	defer signal.Stop(wanted)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("lease of %s: %v", path, err)
	}
	action()
	select {
	case <-wanted:
	case <-time.After(patience):
		t.Fatalf("nobody reads %s", path)
	}
	return func() { f.Close() }
}

// pending says that a process has a signal that no thread has taken.
func pending(t *testing.T, pid int) bool {
	t.Helper()
	status := content(t, "/proc/"+strconv.Itoa(pid)+"/status")
	_, set, _ := strings.Cut(status, "ShdPnd:\t")
	return !strings.HasPrefix(set, strings.Repeat("0", 16)+"\n")
}

// A file that does not hold all changes does not end a review.
func TestReviewAsksOnAfterAFileThatLacksChanges(t *testing.T) {
	s, home, dir := newSandboxes(t), newHome(t), t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	lacking := append([]string{"--review"}, twoChanges(home, "mkdir empty")...)
	const offer = "one.patch does not hold these; save all to a .tar, too? file (Enter: no): "

	r := newReviewSession(t, s, home, lacking...)
	r.answers(question, "s "+file("one.patch")+"\n", "left out: "+home+"/empty: ", "", "saved to", "", offer, "\n",
		question, "s "+file("one.tar")+"\n", "saved to", "")
	r.removes(0)

	r = newReviewSession(t, s, home, lacking...)
	r.answers(question, "s "+file("two.patch")+"\n", "save all to a .tar, too?", file("one.tar")+"\n", "exists already", "",
		question, "s\n", "file (", file("three.patch")+"\n", "save all to a .tar, too?", file("two.tar")+"\n", "saved to", "")
	r.removes(0)
	for _, name := range []string{"one.patch", "one.tar", "two.patch", "two.tar", "three.patch"} {
		if !exists(file(name)) {
			t.Errorf("%s is not there", name)
		}
	}

	r = newReviewSession(t, s, home, append([]string{"--review"}, twoChanges(home, "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'")...)...)
	r.answers(question, "s "+file("socket.tar")+"\n", "left out: "+home+"/s: ", "", "saved to", "",
		question, "a\n", "left out: "+home+"/s: ", "", "only in the sandbox: 1 change", "", question, "d\n")
	r.removes(0)
}

// It asks on for a script, too: the next line is the next answer.
func TestReviewOfAScriptAfterAFileThatLacksChanges(t *testing.T) {
	s, home, dir := newSandboxes(t), newHome(t), t.TempDir()
	saved := filepath.Join(dir, "saved")
	for input, says := range map[string]string{
		"s " + saved + "1.patch\n":                              "discarded",
		"s " + saved + "2.patch\ns " + saved + "2.tar\n":        "2.tar\n",
		"s " + saved + "3.patch\nd README\nk\na README\nquit\n": "discarded",
	} {
		cmd := s.command(append([]string{"do", "--review"}, twoChanges(home, "mkdir empty")...)...)
		cmd.Stdin = strings.NewReader(input)
		got := run(t, cmd)
		if got.code != 0 || !strings.Contains(got.stderr, "left out: "+home+"/empty: ") || !strings.HasSuffix(got.stderr, says) && !strings.HasSuffix(got.stderr, says+"\n") {
			t.Errorf("%q: %+v", input, got)
		}
	}
	if names := s.names(); len(names) > 0 {
		t.Errorf("sandboxes that are left: %q", names)
	}
}
