package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// output are the files that a detached command's output goes to.
type output struct{ stdout, stderr *os.File }

// detach makes a command a detached one.
func detach(t testing.TB, c *Command, limit int64) output {
	t.Helper()
	dir := t.TempDir()
	var o output
	for name, f := range map[string]**os.File{"stdout": &o.stdout, "stderr": &o.stderr} {
		var err error
		if *f, err = os.Create(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*f).Close() })
	}
	c.Detach = &Detachment{ID: newExecID(), Stdout: o.stdout, Stderr: o.stderr, Limit: limit}
	return o
}

var execs byte

func newExecID() ExecID {
	execs++
	return ExecID{execs, 0xff, idSize - 1: execs}
}

func (o output) read(t testing.TB) (stdout, stderr string) {
	t.Helper()
	stdout, _ = keptOutput(t, o.stdout)
	stderr, _ = keptOutput(t, o.stderr)
	return stdout, stderr
}

// keptOutput is the output in a file, and how many bytes are missing.
func keptOutput(t testing.TB, f *os.File) (text string, omitted int64) {
	t.Helper()
	var b strings.Builder
	_, err := streams.LogFile{File: f, Ring: true}.Copy(&b, 0, func(n int64) error { omitted += n; return nil })
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), omitted
}

// finish waits for a detached command and its output.
func finish(t testing.TB, p *Process) Exit {
	t.Helper()
	exit, err := p.Wait(within(t, testhost.Patience))
	if err := errors.Join(err, p.Drained(within(t, testhost.Patience))); err != nil {
		t.Fatal(err)
	}
	return exit
}

// drainer is the process that takes the output of the one detached command there
// is, by its id inside.
func (s *sandbox) drainer(t testing.TB) (pid int) {
	t.Helper()
	testhost.Eventually(t, "a drainer", func() bool {
		for _, p := range s.inside(t) {
			if p.Name == "sandbox-output" {
				pid = p.PID
			}
		}
		return pid > 0
	})
	return pid
}

// TestDetachedOutlivesItsHost starts a command, and attaches to it from another
// connection when the first is gone.
func TestDetachedOutlivesItsHost(t *testing.T) {
	s, path := openListening(t)
	first := s.connect(t, path)
	c := command("bash", "-c", `trap 'echo bye; echo err >&2; exit 7' TERM; echo begun; while :; do sleep 0.01; done`)
	out := detach(t, &c, 1000)
	p, err := first.Start(within(t, testhost.Patience), c)
	if err != nil {
		t.Fatal(err)
	}
	testhost.Eventually(t, "its output", func() bool { got, _ := out.read(t); return got == "begun\n" })
	p.Close()
	first.Close()
	s.Close()

	second := s.connect(t, path)
	if list, err := second.Detached(within(t, testhost.Patience)); err != nil || !slices.Equal(list, []ExecID{c.Detach.ID}) {
		t.Fatalf("list: %v, %v", list, err)
	}
	attach := func() *Process {
		p, err := second.Attach(within(t, testhost.Patience), c.Detach.ID)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	one, two := attach(), attach()
	if _, err := one.Wait(within(t, 10*time.Millisecond)); err == nil {
		t.Fatal("it has ended")
	}
	if err := one.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*Process{"one": one, "two": two, "one that came late": nil} {
		if p == nil {
			p = attach()
		}
		if exit := finish(t, p); exit.Status.ExitStatus() != 7 || exit.MaxRSS == 0 {
			t.Errorf("%s: %+v", name, exit)
		}
		if err := p.Signal(unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%s: signal after the end: %v", name, err)
		}
	}
	if stdout, stderr := out.read(t); stdout != "begun\nbye\n" || stderr != "err\n" {
		t.Errorf("output %q and %q", stdout, stderr)
	}
	if err := second.Forget(within(t, testhost.Patience), c.Detach.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Attach(within(t, testhost.Patience), c.Detach.ID); !errors.Is(err, ErrNoExec) {
		t.Errorf("after it was forgotten: %v", err)
	}
	if list, err := second.Detached(within(t, testhost.Patience)); err != nil || len(list) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
	testhost.Eventually(t, "no process but two", func() bool { return len(second.inside(t)) == 2 })
	testhost.Eventually(t, "seven descriptors", func() bool { return s.descriptors(t) == 7 })
}

// TestDetachedOutputIsBounded floods it, and fills its disk.
func TestDetachedOutputIsBounded(t *testing.T) {
	s := open(t)
	flood := func() Command {
		return command("sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; printf last; head -c 300000 /dev/zero | tr '\\0' y >&2")
	}
	c := flood()
	out := detach(t, &c, 100_001)
	p, err := s.Start(within(t, testhost.Patience), c)
	if err != nil {
		t.Fatal(err)
	}
	if exit := finish(t, p); exit.Status != 0 {
		t.Errorf("status %#x", exit.Status)
	}
	stdout, omitted := keptOutput(t, out.stdout)
	if stdout != strings.Repeat("x", 100_001-4)+"last" || omitted != 20_000_004-100_001 {
		t.Errorf("%d bytes are kept, and %d are not; the last are %q", len(stdout), omitted, stdout[max(0, len(stdout)-10):])
	}
	if stderr, omitted := keptOutput(t, out.stderr); stderr != strings.Repeat("y", 100_001) || omitted != 300_000-100_001 {
		t.Errorf("%d bytes are kept, and %d are not", len(stderr), omitted)
	}
	for _, f := range []*os.File{out.stdout, out.stderr} {
		if st, err := f.Stat(); err != nil || st.Size() > streams.Start+100_001 {
			t.Errorf("a file of %d bytes, %v", st.Size(), err)
		}
	}

	for name, path := range map[string]string{"full disk": "/dev/full", "read only": "/etc/passwd"} {
		f, err := os.OpenFile(path, map[string]int{"/dev/full": os.O_WRONLY}[path], 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c := flood()
		out := detach(t, &c, 1<<40)
		c.Detach.Stdout = f
		p, err := s.Start(within(t, testhost.Patience), c)
		if err != nil {
			t.Fatal(err)
		}
		if exit := finish(t, p); exit.Status != 0 {
			t.Errorf("%s: status %#x", name, exit.Status)
		}
		if _, stderr := out.read(t); len(stderr) != 300_000 {
			t.Errorf("%s: of the other stream %d bytes are kept", name, len(stderr))
		}
	}
}

// newTmpfs is a file in a file system of this size, which no path leads to.
func newTmpfs(t testing.TB, size string) *os.File {
	t.Helper()
	config, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(config)
	if err := errors.Join(unix.FsconfigSetString(config, "size", size), unix.FsconfigCreate(config)); err != nil {
		t.Fatal(err)
	}
	mount, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mount)
	fd, err := unix.Openat(mount, "output", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "output")
	t.Cleanup(func() { f.Close() })
	return f
}

// Whatever its limit, kept output leaves the host some of the file system.
func TestDetachedOutputLeavesRoom(t *testing.T) {
	s := open(t)
	c := command("sh", "-c", "head -c 20000000 /dev/zero; printf last; echo done >&2")
	out := detach(t, &c, 1<<40)
	c.Detach.Stdout = newTmpfs(t, "16m")
	p, err := s.Start(within(t, testhost.Patience), c)
	if err != nil {
		t.Fatal(err)
	}
	if exit := finish(t, p); exit.Status != 0 {
		t.Errorf("status %#x", exit.Status)
	}
	const most = streams.Start + 14<<20 + 1<<16 // with the header, and a full pipe
	if st, err := c.Detach.Stdout.Stat(); err != nil || st.Size() < most-2<<20 || st.Size() > most {
		t.Errorf("%d bytes are kept, %v", st.Size(), err)
	}
	// The tail goes on in the room that the stream has.
	if text, omitted := keptOutput(t, c.Detach.Stdout); !strings.HasSuffix(text, "\x00last") || omitted != 20_000_004-int64(len(text)) || len(text) < 10<<20 {
		t.Errorf("%d bytes are kept, and %d are not", len(text), omitted)
	}
	if _, stderr := out.read(t); stderr != "done\n" {
		t.Errorf("of the other stream %q is kept", stderr)
	}
}

// TestDetachedStdioIsItsOwn: stdout can be opened anew by its user, stdin is
// what was passed or null, and nothing else is there.
func TestDetachedStdioIsItsOwn(t *testing.T) {
	s := open(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("input"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	for _, stdin := range []*os.File{r, nil} {
		c := command("sh", "-c", "cat; echo again >/proc/self/fd/1; ls /proc/self/fd | wc -l >/proc/self/fd/2")
		c.Stdin = stdin
		out := detach(t, &c, 1000)
		p, err := s.Start(within(t, testhost.Patience), c)
		if err != nil {
			t.Fatal(err)
		}
		finish(t, p)
		want := "again\n"
		if stdin != nil {
			want = "inputagain\n"
		}
		if stdout, stderr := out.read(t); stdout != want || strings.TrimSpace(stderr) != "4" { // ls's own
			t.Errorf("output %q and %q", stdout, stderr)
		}
	}
}

// startWaiting starts a detached command that reads a line of /tmp/fifo, which
// releaseWaiting writes.
func (s *sandbox) startWaiting(t testing.TB, c *Command) (output, *Process) {
	t.Helper()
	s.mustRun(t, command("mkfifo", "-m", "666", "/tmp/fifo"))
	out := detach(t, c, 1000)
	p, err := s.Start(within(t, testhost.Patience), *c)
	if err != nil {
		t.Fatal(err)
	}
	return out, p
}

func (s *sandbox) releaseWaiting(t testing.TB) {
	t.Helper()
	s.mustRun(t, command("sh", "-c", "echo go >/tmp/fifo"))
}

// TestDrainedIsLaterThanTheEnd where something else holds the output.
func TestDrainedIsLaterThanTheEnd(t *testing.T) {
	s := open(t)
	c := command("sh", "-c", "sh -c 'read line </tmp/fifo; echo late' & echo early")
	out, p := s.startWaiting(t, &c)
	if _, err := p.Wait(within(t, testhost.Patience)); err != nil {
		t.Fatal(err)
	}
	ctx := within(t, 20*time.Millisecond)
	if err := p.Drained(ctx); !errors.Is(err, ctx.Err()) {
		t.Errorf("drained: %v", err)
	}
	other, err := s.Attach(within(t, testhost.Patience), c.Detach.ID)
	if err != nil {
		t.Fatal(err)
	}
	s.releaseWaiting(t)
	finish(t, p)
	finish(t, other)
	if stdout, _ := out.read(t); stdout != "early\nlate\n" {
		t.Errorf("output %q", stdout)
	}
}

// TestNothingInsideTouchesTheDrainer tries everything on it, and looks at it
// from the host.
func TestNothingInsideTouchesTheDrainer(t *testing.T) {
	s := open(t)
	c := command("sh", "-c", "trap '' TERM; read line </tmp/fifo; echo end")
	c.UID, c.GID = 2000, 2000
	out, p := s.startWaiting(t, &c)
	drainer := s.drainer(t)
	for _, id := range []uint32{1000, 0, 2000} {
		s.resists(t, id, drainer)
	}
	s.mustRun(t, command("sh", "-c", "kill -9 -1; kill -STOP -1; true"))
	host := s.drainerOnHost(t)
	if entries, err := os.ReadDir("/proc/" + host + "/fd"); err != nil || len(entries) != 4 {
		t.Errorf("it has %d descriptors, %v", len(entries), err)
	}
	status, _ := os.ReadFile("/proc/" + host + "/status")
	for _, want := range []string{"CapPrm:\t0000000000000000\n", "Seccomp:\t2\n", "NoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("its status lacks %q:\n%s", want, status)
		}
	}
	s.releaseWaiting(t)
	finish(t, p)
	if stdout, _ := out.read(t); stdout != "end\n" {
		t.Errorf("output %q", stdout)
	}
}

// drainerOnHost is drainer's, by its id on the host.
func (s *sandbox) drainerOnHost(t testing.TB) (pid string) {
	t.Helper()
	testhost.Eventually(t, "a drainer", func() bool {
		for _, child := range strings.Fields(s.hostFile(t, fmt.Sprintf("task/%d/children", s.cmd.Process.Pid))) {
			if name, _ := os.ReadFile("/proc/" + child + "/comm"); string(name) == "sandbox-output\n" {
				pid = child
			}
		}
		return pid != ""
	})
	return pid
}

func TestDetachedThatDoesNotStartIsNotKept(t *testing.T) {
	s := open(t)
	c := command("nowhere")
	detach(t, &c, 1000)
	var refused *StartError
	if _, err := s.Start(within(t, testhost.Patience), c); !errors.As(err, &refused) || !refused.NotFound() {
		t.Fatalf("start: %v", err)
	}
	if list, err := s.Detached(within(t, testhost.Patience)); err != nil || len(list) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}

	// One whose start was given up while the agent did not look.
	c.Args = []string{"sleep", "1000"}
	if err := s.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx := within(t, 50*time.Millisecond)
	if _, err := s.Start(ctx, c); !errors.Is(err, ctx.Err()) {
		t.Errorf("start: %v", err)
	}
	if err := s.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p, err := s.Attach(within(t, testhost.Patience), c.Detach.ID)
	if err != nil {
		t.Fatal(err)
	}
	if exit := finish(t, p); exit.Status.Signal() != unix.SIGKILL {
		t.Errorf("status %#x", exit.Status)
	}
}

// TestDetachedTableIsBounded refuses an id that is there, and gives the place of
// what ended first to what comes.
func TestDetachedTableIsBounded(t *testing.T) {
	s := open(t)
	c := command("true")
	detach(t, &c, 0)
	id := func(n int) ExecID { return ExecID{byte(n), byte(n >> 8), 1} }
	c.Detach.ID = id(0)
	c.Args = []string{"sleep", "1000"}
	sleep, err := s.Start(within(t, testhost.Patience), c)
	if err != nil {
		t.Fatal(err)
	}
	var refused *StartError
	if _, err := s.Start(within(t, testhost.Patience), c); !errors.As(err, &refused) || refused.Stage != StageID || refused.Errno != syscall.EEXIST {
		t.Errorf("the same id again: %v", err)
	}
	c.Args[0] = "/bin/true"
	for n := 1; n < maxDetached+3; n++ {
		c.Detach.ID = id(n)
		p, err := s.Start(within(t, testhost.Patience), c)
		if err != nil {
			t.Fatal(n, err)
		}
		finish(t, p)
	}
	list, err := s.Detached(within(t, testhost.Patience))
	if err != nil || len(list) != maxDetached {
		t.Errorf("%d are kept, %v", len(list), err)
	}
	for n, kept := range map[int]bool{0: true, 1: false, 2: false, 3: false, 4: true, maxDetached + 2: true} {
		if slices.Contains(list, id(n)) != kept {
			t.Errorf("number %d: kept should be %v", n, kept)
		}
	}
	sleep.Signal(unix.SIGKILL)
	finish(t, sleep)
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

func TestForgottenCommandGoesOn(t *testing.T) {
	s := open(t)
	c := command("sh", "-c", "read line </tmp/fifo; echo end")
	out, p := s.startWaiting(t, &c)
	if err := s.Forget(within(t, testhost.Patience), c.Detach.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(within(t, testhost.Patience)); !errors.Is(err, ErrGone) {
		t.Errorf("wait: %v", err)
	}
	s.releaseWaiting(t)
	testhost.Eventually(t, "its output", func() bool { got, _ := out.read(t); return got == "end\n" })
	testhost.Eventually(t, "no process but two", func() bool { return len(s.inside(t)) == 2 })
}

// A neighbour has the output of a command that has ended and was forgotten: the host has
// removed the files, and does not count what is written to them.
func TestForgottenOutputGrowsNoMore(t *testing.T) {
	s := open(t)
	c := command("sh", "-c", "sh -c 'read line </tmp/fifo; exec sleep 1000' & echo early")
	_, p := s.startWaiting(t, &c)
	if _, err := p.Wait(within(t, testhost.Patience)); err != nil {
		t.Fatal(err)
	}
	s.drainer(t)
	if err := s.Forget(within(t, testhost.Patience), c.Detach.ID); err != nil {
		t.Fatal(err)
	}
	testhost.Eventually(t, "no drainer", func() bool {
		return !slices.ContainsFunc(s.inside(t), func(p seenProcess) bool { return p.Name == "sandbox-output" })
	})
	s.releaseWaiting(t)
}

// answers has the fake answer a request. What it returns waits for that, and holds
// that no descriptor is left.
func (f *fakeAgent) answers(t testing.TB, name string, say func(fd int)) (answered func()) {
	before := len(testhost.Descriptors())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, fd := range f.receive(t) {
			say(fd)
			descriptor.CloseFD(fd)
		}
	}()
	return func() {
		t.Helper()
		<-done
		if after := len(testhost.Descriptors()); after > before {
			t.Errorf("%s: %d descriptors before, %d after", name, before, after)
		}
	}
}

// TestAttachSurvivesAHostileAgent: whatever it says of a detached command.
func TestAttachSurvivesAHostileAgent(t *testing.T) {
	errno := func(b []byte) { b[8] = 2 }
	for name, say := range map[string]func(fd int){
		"nothing":           func(int) {},
		"exit first":        func(fd int) { sendEvent(fd, eventExited, nil) },
		"a refusal":         func(fd int) { sendEvent(fd, eventFailed, errno) },
		"a file":            func(fd int) { sendEvent(fd, eventAttached, nil, 0) },
		"noise":             func(fd int) { unix.Send(fd, []byte("hello"), 0) },
		"attached, no more": func(fd int) { sendEvent(fd, eventAttached, nil) },
		"attached twice":    func(fd int) { sendEvent(fd, eventAttached, nil); sendEvent(fd, eventAttached, nil) },
		"drained twice": func(fd int) {
			sendEvent(fd, eventAttached, nil)
			sendEvent(fd, eventDrained, nil)
			sendEvent(fd, eventDrained, nil)
		},
		"a list": func(fd int) { sendEvent(fd, eventAttached, nil); sendEvent(fd, eventList, nil) },
	} {
		f := newFakeAgent(t)
		answered := f.answers(t, name, say)
		p, err := f.Attach(within(t, testhost.Patience), ExecID{1})
		if err == nil {
			if exit, err := p.Wait(within(t, testhost.Patience)); err == nil {
				t.Errorf("%s: was believed: %+v", name, exit)
			}
			p.Close()
		}
		answered()
	}
}

// TestListSurvivesAHostileAgent: whatever it answers.
func TestListSurvivesAHostileAgent(t *testing.T) {
	entries := func(kind eventKind, count, size int, files ...int) func(int) {
		return func(fd int) {
			b := make([]byte, size)
			b[0], b[8], b[9] = byte(kind), byte(count), byte(count>>8)
			unix.Sendmsg(fd, b, unix.UnixRights(files...), nil, unix.MSG_NOSIGNAL)
		}
	}
	for name, say := range map[string]func(fd int){
		"nothing":   func(int) {},
		"too few":   entries(eventList, 2, eventSize+idSize),
		"too many":  entries(eventList, 1, eventSize+2*idSize),
		"a part":    entries(eventList, 1, eventSize+idSize-1),
		"beyond":    entries(eventList, maxDetached+1, eventSize+(maxDetached+1)*idSize),
		"negative":  entries(eventList, -1, eventSize),
		"a file":    entries(eventList, 1, eventSize+idSize, 0),
		"an exit":   entries(eventExited, 0, eventSize),
		"very long": entries(eventList, 1, 100_000),
	} {
		f := newFakeAgent(t)
		answered := f.answers(t, name, say)
		if list, err := f.Detached(within(t, testhost.Patience)); err == nil {
			t.Errorf("%s: was believed: %v", name, list)
		} else if name == "nothing" && !errors.Is(err, ErrGone) {
			t.Errorf("%s: %v", name, err)
		}
		answered()
	}
}

// TestMalformedRequestsForDetachedAreRefused goes past what the host checks.
func TestMalformedRequestsForDetachedAreRefused(t *testing.T) {
	s := open(t)
	for name, test := range map[string]struct {
		request request
		files   int
	}{
		"a stdout of its own":  {request{kind: requestExec, with: withOutput, stdio: 2}, 3},
		"one file":             {request{kind: requestExec, with: withOutput}, 1},
		"both sorts of cgroup": {request{kind: requestExec, with: withCgroup, tasks: 1}, 2},
		"many cgroups":         {request{kind: requestExec, tasks: maxTasks + 1}, maxTasks + 1},
		"unknown bits":         {request{kind: requestExec, with: 32}, 1},
		"huge tasks":           {request{kind: requestExec, tasks: -1}, 0},
		"attach with more":     {request{kind: requestAttach}, 0}, // ask sends two sockets
		"list with more":       {request{kind: requestList}, 0},
		"tie with files":       {request{kind: requestTie}, 0},
		"forget with files":    {request{kind: requestForget}, 0},
	} {
		exec, _ := s.sendRequest(t, test.request.encode(), nil, make([]int, test.files)...)
		e, _, err := exec.receive(within(t, testhost.Patience), false)
		if err != nil || e.kind != eventFailed || e.stage != StageRequest {
			t.Errorf("%s: %+v, %v, want a refusal", name, e, err)
		}
	}
	// The first connection is still not tied by any of these, nor is it closed.
	s.serves(t)
	testhost.Eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

func TestNetworkIsRefused(t *testing.T) {
	s := open(t)
	ns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	c := command("true")
	c.Network = ns
	var refused *StartError
	if _, err := s.Start(within(t, testhost.Patience), c); !errors.As(err, &refused) || refused.Stage != StageNetwork || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("start: %v", err)
	}
	s.serves(t)
}

// TestStormsStopNoOutput has the user of a detached command stop and kill all it
// can while another's output flows.
func TestStormsStopNoOutput(t *testing.T) {
	s := open(t)
	for _, signal := range []string{"STOP", "KILL"} {
		storm, out := s.begin(t, asProbe("storm", signal))
		if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		c := command("sh", "-c", "for i in $(seq 2000); do echo $i; done")
		c.UID, c.GID = 2000, 2000
		kept := detach(t, &c, 1<<20)
		p, err := s.Start(within(t, testhost.Patience), c)
		if err != nil {
			t.Fatal(err)
		}
		finish(t, p)
		if stdout, _ := kept.read(t); !strings.HasSuffix(stdout, "\n1999\n2000\n") {
			t.Errorf("%s: output ends %q", signal, stdout[max(0, len(stdout)-20):])
		}
		storm.Close()
	}
	testhost.Eventually(t, "no process but two", func() bool { return len(s.inside(t)) == 2 })
}
