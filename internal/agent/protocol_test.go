package agent

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const sources = "../../cmd/sandbox-agent/"

// TestStagesAreTheAgents compares both lists of stages by number and, but for
// their spelling, by name.
func TestStagesAreTheAgents(t *testing.T) {
	header, err := os.ReadFile(sources + "stages.h")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("stage.go")
	if err != nil {
		t.Fatal(err)
	}
	list := func(text []byte, pattern string) map[string]string {
		found := map[string]string{}
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found[strings.ToUpper(strings.ReplaceAll(string(m[1]), "_", ""))] = string(m[2])
		}
		return found
	}
	c := list(header, `STAGE_(\w+) = (\d+),`)
	here := list(source, `Stage(\w+) +Stage = (\d+)`)
	if len(c) < 20 {
		t.Fatalf("only %d stages found in stages.h", len(c))
	}
	for name, number := range c {
		if here[name] != number {
			t.Errorf("%s is %s in stages.h and %q here", name, number, here[name])
		}
		n, _ := strconv.Atoi(number)
		if words := Stage(n).String(); strings.HasPrefix(words, "stage ") {
			t.Errorf("%s has no words", name)
		}
	}
	if len(here) != len(c) {
		t.Errorf("%d stages here, %d in stages.h", len(here), len(c))
	}
}

// TestConstantsAreTheAgents compares the numbers that both ends hold.
func TestConstantsAreTheAgents(t *testing.T) {
	header, err := os.ReadFile(sources + "protocol.h")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]int{
		"PROTOCOL_VERSION": protocolVersion, "AGENT_ID": agentID,
		"MAX_GROUPS": maxGroups, "MAX_RLIMITS": maxRlimits,
		"REQUEST_EXEC": int(requestExec), "REQUEST_SIGNAL": int(requestSignal),
		"EVENT_HELLO": int(eventHello), "EVENT_FATAL": int(eventFatal),
		"EVENT_FAILED":   int(eventFailed),
		"EVENT_TERMINAL": int(eventTerminal), "EVENT_EXITED": int(eventExited),
	} {
		want := regexp.MustCompile(name + ` = ` + strconv.Itoa(value) + `\b`)
		if !want.Match(header) {
			t.Errorf("protocol.h lacks %s", want)
		}
	}
	if !bytes.Contains(header, []byte("MAX_PAYLOAD = 8 << 20")) || maxPayload != 8<<20 {
		t.Error("MAX_PAYLOAD differs")
	}
}

// TestAgentRefusesOtherSurroundings starts it where its promises would not
// hold.
func TestAgentRefusesOtherSurroundings(t *testing.T) {
	file, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, test := range map[string]struct {
		option option
		stage  Stage
	}{
		"not process 1":      {setting(childVariable, "yes"), StagePID},
		"id 1000":            {setting(idVariable, "1000"), StageIdentity},
		"id 0":               {setting(idVariable, "0"), StageIdentity},
		"no capabilities":    {setting(capsVariable, "none"), StageIdentity},
		"a file as stdin":    {func(c *exec.Cmd) { c.Stdin = file }, StageStdio},
		"a pipe as stderr":   {func(c *exec.Cmd) { c.Stderr = c.ExtraFiles[2] }, StageStdio},
		"a few descriptors":  {setting(filesVariable, "16"), StageLoop},
		"another descriptor": {func(c *exec.Cmd) { c.ExtraFiles[1] = c.ExtraFiles[0] }, StageControl},
	} {
		s := start(t, test.option)
		err := s.Ready(within(t, 10*time.Second))
		if test.stage == StageControl {
			if !errors.Is(err, ErrGone) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, want ErrGone", name, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.stage.String()) {
			t.Errorf("%s: %v, want %s", name, err, test.stage)
		}
		s.Close() // in case it does serve
		s.cmd.Wait()
		if status := s.cmd.ProcessState.ExitCode(); status != int(test.stage) {
			t.Errorf("%s: exit status %d, want %d", name, status, test.stage)
		}
	}
}

// ask sends a request of any form and returns the exec's and the set-up
// socket.
func (s *sandbox) ask(t testing.TB, message, payload []byte, files ...int) (exec, setup *socket) {
	t.Helper()
	exec, execTheirs, err := newSocket("exec")
	if err != nil {
		t.Fatal(err)
	}
	setup, setupTheirs, err := newSocket("setup")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exec.close(); setup.close() })
	fds := []int{execTheirs, setupTheirs}
	defer closeAll(fds...)
	ctx := within(t, 5*time.Second)
	if err := s.control.send(ctx, message, append(fds, files...)); err != nil {
		t.Fatal(err)
	}
	closeAll(fds...)
	fds = nil
	if err := sendParts(ctx, setup, payload); err != nil {
		t.Fatal(err)
	}
	return exec, setup
}

// TestMalformedRequestsAreRefused sends what no host of this version would.
func TestMalformedRequestsAreRefused(t *testing.T) {
	s := open(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	n := int(null.Fd())
	exec := request{kind: requestExec}.encode()
	word := func(at int, value byte) []byte {
		b := bytes.Clone(exec)
		b[at] = value
		return b
	}
	for name, test := range map[string]struct {
		message []byte
		files   []int
	}{
		"short":          {exec[:19], nil},
		"one byte":       {exec[:1], nil},
		"long":           {append(bytes.Clone(exec), 0), nil},
		"very long":      {make([]byte, 100_000), nil},
		"unknown kind":   {word(0, 9), nil},
		"signal":         {word(0, byte(requestSignal)), nil},
		"more than said": {exec, []int{n}},
		"less than said": {word(4, 7), []int{n, n}},
		"far more":       {exec, make([]int, 200)},
		"more than room": {word(4, 7), []int{n, n, n, n}},
		"unknown stdio":  {word(4, 8), []int{n}},
	} {
		for i := range test.files {
			test.files[i] = n
		}
		exec, _ := s.ask(t, test.message, nil, test.files...)
		e, _, err := exec.receive(within(t, 5*time.Second), false)
		if err != nil || e.kind != eventFailed || e.stage != StageRequest {
			t.Errorf("%s: %+v, %v, want a refusal", name, e, err)
		}
	}
	// Those without an exec's socket, or with other things in its place.
	ctx := within(t, 5*time.Second)
	for _, fds := range [][]int{nil, {n}, {n, n}, {n, n, n}, {n, n, n, n, n, n}} {
		if err := s.control.send(ctx, exec, fds); err != nil {
			t.Fatal(err)
		}
	}
	s.serves(t)
	eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

// TestMalformedSignalsAreIgnored floods an exec's socket.
func TestMalformedSignalsAreIgnored(t *testing.T) {
	s := open(t)
	p, _ := s.begin(t, command("sleep", "1000"))
	kill := request{kind: requestSignal, signal: unix.SIGKILL}
	var messages [][]byte
	for _, signal := range []syscall.Signal{0, -1, 65, 1 << 30, -1 << 31} {
		messages = append(messages, request{kind: requestSignal, signal: signal}.encode())
	}
	other := kill.encode()
	other[0] = 3
	group := kill.encode()
	group[16] = 2
	messages = append(messages, other, group, kill.encode()[:19], append(kill.encode(), 0), request{kind: requestExec}.encode())
	ctx := within(t, 5*time.Second)
	for range 50 {
		for _, m := range messages {
			if err := p.exec.send(ctx, m, nil); err != nil {
				t.Fatal(err)
			}
		}
		// Descriptors that it does not ask for are not kept by it.
		if err := p.exec.send(ctx, other, []int{0, 1, 2}); err != nil {
			t.Fatal(err)
		}
	}
	s.serves(t)
	p.Signal(unix.SIGTERM)
	if exit, err := p.Wait(ctx); err != nil || exit.Status.Signal() != unix.SIGTERM {
		t.Errorf("status %#x, %v", exit.Status, err)
	}
	eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

// TestSocketsThatAreNotSockets hands over other things in their place.
func TestSocketsThatAreNotSockets(t *testing.T) {
	s := open(t)
	c := command("sleep", "0.01")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, f := range []*os.File{r, w, dir} {
		fd := int(f.Fd())
		for _, fds := range [][]int{{fd, fd}, {fd, fd, fd, fd, fd}} {
			r := request{kind: requestExec, payload: len(c.encode())}
			if len(fds) > 2 {
				r.stdio = 7
			}
			if err := s.control.send(within(t, 5*time.Second), r.encode(), fds); err != nil {
				t.Fatal(err)
			}
		}
		s.serves(t)
	}
	eventually(t, "no process but two", func() bool { return len(s.inside(t)) == 2 })
	eventually(t, "six descriptors", func() bool { return s.descriptors(t) == 6 })
}

// fake is what an agent that was taken over can do: say anything.
type fake struct {
	*Conn
	guest *os.File
}

func newFake(t testing.TB) *fake {
	t.Helper()
	c, guest, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); guest.Close() })
	return &fake{c, guest}
}

// take receives a request as the agent would.
func (f *fake) take(t testing.TB) []int {
	message, rights := make([]byte, 64), make([]byte, 256)
	var oobn int
	err := error(unix.EAGAIN)
	for deadline := time.Now().Add(5 * time.Second); err == unix.EAGAIN && time.Now().Before(deadline); runtime.Gosched() {
		_, oobn, _, _, err = unix.Recvmsg(int(f.guest.Fd()), message, rights, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	}
	messages, _ := unix.ParseSocketControlMessage(rights[:oobn])
	if err != nil || len(messages) != 1 {
		t.Errorf("fake agent: %v, %d control messages", err, len(messages))
		return nil
	}
	fds, _ := unix.ParseUnixRights(&messages[0])
	return fds
}

// tell sends an event, changed, and descriptors.
func tell(fd int, kind eventKind, change func([]byte), files ...int) {
	b := make([]byte, eventSize)
	b[0] = byte(kind)
	if change != nil {
		change(b)
	}
	unix.Sendmsg(fd, b, unix.UnixRights(files...), nil, unix.MSG_NOSIGNAL)
}

// sendEmpty sends a descriptor with no byte, which unix.Sendmsg would add.
func sendEmpty(t testing.TB, fd, file int) {
	rights := unix.UnixRights(file)
	m := unix.Msghdr{Control: &rights[0]}
	m.SetControllen(len(rights))
	if _, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), 0); errno != 0 {
		t.Errorf("sendmsg: %v", errno)
	}
}

func TestHostSurvivesAHostileAgent(t *testing.T) {
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs a terminal to offer: %v", err)
	}
	defer ptmx.Close()
	path, err := unix.Open("/dev/ptmx", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(path)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	file, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	n, master, plain := int(null.Fd()), int(ptmx.Fd()), int(file.Fd())
	errno := func(b []byte) { b[8] = 2 }

	for name, test := range map[string]struct {
		tty  bool
		exec func(fd int)
		set  func(fd int)
	}{
		"silence and end":       {true, nil, nil},
		"failed, with a file":   {false, func(fd int) { tell(fd, eventFailed, errno, n) }, nil},
		"terminal as the exit":  {false, func(fd int) { tell(fd, eventTerminal, nil) }, nil},
		"failed without errno":  {false, func(fd int) { tell(fd, eventFailed, nil) }, nil},
		"failed with a file":    {true, nil, func(fd int) { tell(fd, eventFailed, errno, n) }},
		"failed twice":          {false, nil, func(fd int) { tell(fd, eventFailed, errno); tell(fd, eventFailed, errno) }},
		"hello":                 {true, nil, func(fd int) { tell(fd, eventHello, nil) }},
		"reserved":              {false, func(fd int) { tell(fd, eventExited, func(b []byte) { b[12] = 1 }) }, nil},
		"unasked terminal":      {false, nil, func(fd int) { tell(fd, eventTerminal, nil, master) }},
		"no terminal":           {true, nil, func(fd int) { tell(fd, eventTerminal, nil) }},
		"two in one":            {true, nil, func(fd int) { tell(fd, eventTerminal, nil, master, master) }},
		"many in one":           {true, nil, func(fd int) { tell(fd, eventTerminal, nil, n, n, n, n, n, n, n, n) }},
		"two terminals":         {true, nil, func(fd int) { tell(fd, eventTerminal, nil, master); tell(fd, eventTerminal, nil, master) }},
		"terminal, then file":   {true, nil, func(fd int) { tell(fd, eventTerminal, nil, master); tell(fd, eventHello, nil, n) }},
		"terminal, then failed": {true, nil, func(fd int) { tell(fd, eventTerminal, nil, master); tell(fd, eventFailed, errno) }},
		"null as terminal":      {true, nil, func(fd int) { tell(fd, eventTerminal, nil, n) }},
		"file as terminal":      {true, nil, func(fd int) { tell(fd, eventTerminal, nil, plain) }},
		"path as terminal":      {true, nil, func(fd int) { tell(fd, eventTerminal, nil, path) }},
		"its own socket":        {true, nil, func(fd int) { tell(fd, eventTerminal, nil, fd) }},
		"short":                 {false, func(fd int) { unix.Send(fd, make([]byte, 39), 0) }, nil},
		"long with files":       {true, nil, func(fd int) { unix.Sendmsg(fd, make([]byte, 5000), unix.UnixRights(n), nil, 0) }},
		"empty with a file":     {true, nil, func(fd int) { sendEmpty(t, fd, n) }},
		"no child's word":       {true, nil, func(int) {}},
		"flood": {false, nil, func(fd int) {
			for range 100 {
				tell(fd, eventExited, nil)
			}
		}},
	} {
		f := newFake(t)
		before := openDescriptors(t)
		over, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			fds := f.take(t)
			if len(fds) < 2 {
				return
			}
			if test.exec != nil {
				test.exec(fds[0])
			} else if test.set != nil {
				test.set(fds[1])
				closeAll(fds[1:]...)
				<-over
				fds = fds[:1]
			}
			closeAll(fds...)
		}()
		c := command("true")
		if test.tty {
			c.TTY = &Winsize{}
		}
		if p, err := f.Start(within(t, 5*time.Second), c); err == nil {
			t.Errorf("%s: was believed", name)
			p.Close()
		} else if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: was waited for", name)
		}
		close(over)
		<-done
		if after := openDescriptors(t); after != before {
			t.Errorf("%s: %d descriptors before, %d after", name, before, after)
		}
	}
}

func TestHostSurvivesAHostileEnd(t *testing.T) {
	for name, change := range map[string]func([]byte){
		"stopped":   func(b []byte) { b[8], b[9] = 0x7f, 19 },
		"continued": func(b []byte) { b[8], b[9] = 0xff, 0xff },
		"high bits": func(b []byte) { copy(b[8:], []byte{0xff, 0xff, 0xff, 0xff}) },
		"kind 0":    func(b []byte) { b[0] = 0 },
		"kind 99":   func(b []byte) { b[0] = 99 },
		"terminal":  func(b []byte) { b[0] = byte(eventTerminal) },
	} {
		f := newFake(t)
		started := make(chan struct{})
		var done sync.WaitGroup
		done.Go(func() {
			fds := f.take(t)
			closeAll(fds[1:]...)
			<-started
			tell(fds[0], eventExited, change)
			closeAll(fds[0])
		})
		p, err := f.Start(within(t, 5*time.Second), command("true"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		close(started)
		for range 2 {
			if exit, err := p.Wait(within(t, 5*time.Second)); err == nil {
				t.Errorf("%s: was believed: %#x", name, exit.Status)
			}
		}
		done.Wait()
	}
}

func TestReadyBelievesNoStranger(t *testing.T) {
	for name, say := range map[string]func(fd int){
		"nothing":         func(int) {},
		"another version": func(fd int) { tell(fd, eventHello, func(b []byte) { b[8] = 2 }) },
		"another event":   func(fd int) { tell(fd, eventExited, nil) },
		"with a file":     func(fd int) { tell(fd, eventHello, func(b []byte) { b[8] = 1 }, 0) },
		"noise":           func(fd int) { unix.Send(fd, []byte("hello"), 0) },
		"an error":        func(fd int) { tell(fd, eventFatal, func(b []byte) { b[8] = 1 }) },
	} {
		f := newFake(t)
		say(int(f.guest.Fd()))
		f.guest.Close()
		if err := f.Ready(within(t, 5*time.Second)); err == nil {
			t.Errorf("%s: is ready", name)
		} else if name == "nothing" && !errors.Is(err, ErrGone) {
			t.Errorf("%s: %v, want ErrGone", name, err)
		}
	}
	f := newFake(t)
	if err := f.Ready(within(t, 10*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
}

// TestAHangingAgentHoldsNobody: it takes no request, or never answers one.
func TestAHangingAgentHoldsNobody(t *testing.T) {
	f := newFake(t)
	before, goroutines := openDescriptors(t), runtime.NumGoroutine()
	for range 600 { // more than the socket's buffer takes
		if _, err := f.Start(within(t, time.Millisecond), command("true")); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	eventually(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= goroutines+1 })
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
