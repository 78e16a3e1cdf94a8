package agent

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A fakeAgent stands for an agent that was taken over: it sends any answer.
type fakeAgent struct {
	*Conn
	guest *os.File
}

func newFakeAgent(t testing.TB) *fakeAgent {
	t.Helper()
	c, guest, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); guest.Close() })
	return &fakeAgent{c, guest}
}

// receive receives a request as the agent would.
func (f *fakeAgent) receive(t testing.TB) []int {
	message, rights := make([]byte, 64), make([]byte, 256)
	var oobn int
	err := error(unix.EAGAIN)
	for deadline := time.Now().Add(testhost.Patience); err == unix.EAGAIN && time.Now().Before(deadline); runtime.Gosched() {
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

// sendEvent sends an event, changed, and descriptors.
func sendEvent(fd int, kind eventKind, change func([]byte), files ...int) {
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

// lie is what a hostile agent says of one exec: on the exec's socket, or on the
// set-up socket.
type lie struct {
	tty  bool
	exec func(fd int)
	set  func(fd int)
}

// lieTable offers null, a terminal's master, a plain file and an O_PATH descriptor
// of a terminal where they are not due.
func lieTable(t testing.TB, n, master, plain, path int) map[string]lie {
	errno := func(b []byte) { b[8] = 2 }
	return map[string]lie{
		"silence and end":       {true, nil, nil},
		"failed, with a file":   {false, func(fd int) { sendEvent(fd, eventFailed, errno, n) }, nil},
		"terminal as the exit":  {false, func(fd int) { sendEvent(fd, eventTerminal, nil) }, nil},
		"failed without errno":  {false, func(fd int) { sendEvent(fd, eventFailed, nil) }, nil},
		"failed with a file":    {true, nil, func(fd int) { sendEvent(fd, eventFailed, errno, n) }},
		"failed twice":          {false, nil, func(fd int) { sendEvent(fd, eventFailed, errno); sendEvent(fd, eventFailed, errno) }},
		"hello":                 {true, nil, func(fd int) { sendEvent(fd, eventHello, nil) }},
		"unknown refusals":      {false, func(fd int) { sendEvent(fd, eventExited, func(b []byte) { b[12] = 32 }) }, nil},
		"unasked terminal":      {false, nil, func(fd int) { sendEvent(fd, eventTerminal, nil, master) }},
		"no terminal":           {true, nil, func(fd int) { sendEvent(fd, eventTerminal, nil) }},
		"two in one":            {true, nil, func(fd int) { sendEvent(fd, eventTerminal, nil, master, master) }},
		"many in one":           {true, nil, func(fd int) { sendEvent(fd, eventTerminal, nil, n, n, n, n, n, n, n, n) }},
		"two terminals":         {true, nil, func(fd int) { sendEvent(fd, eventTerminal, nil, master); sendEvent(fd, eventTerminal, nil, master) }},
		"terminal, then file":   {true, nil, func(fd int) { sendEvent(fd, eventTerminal, nil, master); sendEvent(fd, eventHello, nil, n) }},
		"terminal, then failed": {true, nil, func(fd int) { sendEvent(fd, eventTerminal, nil, master); sendEvent(fd, eventFailed, errno) }},
		"null as terminal":      {true, nil, func(fd int) { sendEvent(fd, eventTerminal, nil, n) }},
		"file as terminal":      {true, nil, func(fd int) { sendEvent(fd, eventTerminal, nil, plain) }},
		"path as terminal":      {true, nil, func(fd int) { sendEvent(fd, eventTerminal, nil, path) }},
		"its own socket":        {true, nil, func(fd int) { sendEvent(fd, eventTerminal, nil, fd) }},
		"short":                 {false, func(fd int) { unix.Send(fd, make([]byte, 39), 0) }, nil},
		"long with files":       {true, nil, func(fd int) { unix.Sendmsg(fd, make([]byte, 5000), unix.UnixRights(n), nil, 0) }},
		"empty with a file":     {true, nil, func(fd int) { sendEmpty(t, fd, n) }},
		"no child's word":       {true, nil, func(int) {}},
		"flood": {false, nil, func(fd int) {
			for range 100 {
				sendEvent(fd, eventExited, nil)
			}
		}},
	}
}

func TestHostSurvivesAHostileAgent(t *testing.T) {
	testhost.Concurrent(t)
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

	for name, test := range lieTable(t, int(null.Fd()), int(ptmx.Fd()), int(file.Fd()), path) {
		f := newFakeAgent(t)
		before := len(testhost.Descriptors())
		over, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			fds := f.receive(t)
			if len(fds) < 2 {
				return
			}
			if test.exec != nil {
				test.exec(fds[0])
			} else if test.set != nil {
				test.set(fds[1])
				descriptor.CloseFD(fds[1:]...)
				<-over
				fds = fds[:1]
			}
			descriptor.CloseFD(fds...)
		}()
		c := command("true")
		if test.tty {
			c.TTY = &Winsize{}
		}
		if p, err := f.Start(within(t, testhost.Patience), c); err == nil {
			t.Errorf("%s: was believed", name)
			p.Close()
		} else if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: was waited for", name)
		}
		close(over)
		<-done
		if after := len(testhost.Descriptors()); after > before {
			t.Errorf("%s: %d descriptors before, %d after", name, before, after)
		}
	}
}

func TestHostSurvivesAHostileEnd(t *testing.T) {
	testhost.Concurrent(t)
	for name, change := range map[string]func([]byte){
		"stopped":   func(b []byte) { b[8], b[9] = 0x7f, 19 },
		"continued": func(b []byte) { b[8], b[9] = 0xff, 0xff },
		"high bits": func(b []byte) { copy(b[8:], []byte{0xff, 0xff, 0xff, 0xff}) },
		"kind 0":    func(b []byte) { b[0] = 0 },
		"kind 99":   func(b []byte) { b[0] = 99 },
		"terminal":  func(b []byte) { b[0] = byte(eventTerminal) },
	} {
		f := newFakeAgent(t)
		started := make(chan struct{})
		var done sync.WaitGroup
		done.Go(func() {
			fds := f.receive(t)
			descriptor.CloseFD(fds[1:]...)
			<-started
			sendEvent(fds[0], eventExited, change)
			descriptor.CloseFD(fds[0])
		})
		p, err := f.Start(within(t, testhost.Patience), command("true"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		close(started)
		for range 2 {
			if exit, err := p.Wait(within(t, testhost.Patience)); err == nil {
				t.Errorf("%s: was believed: %#x", name, exit.Status)
			}
		}
		done.Wait()
	}
}

func TestReadyBelievesNoStranger(t *testing.T) {
	for name, say := range map[string]func(fd int){
		"nothing":         func(int) {},
		"a newer version": func(fd int) { sendEvent(fd, eventHello, func(b []byte) { b[8] = protocolVersion + 1 }) },
		"an old version":  func(fd int) { sendEvent(fd, eventHello, func(b []byte) { b[8] = oldestVersion - 1 }) },
		"no version":      func(fd int) { sendEvent(fd, eventHello, func(b []byte) { b[11] = 0xff }) },
		"another event":   func(fd int) { sendEvent(fd, eventExited, nil) },
		"with a file":     func(fd int) { sendEvent(fd, eventHello, func(b []byte) { b[8] = protocolVersion }, 0) },
		"noise":           func(fd int) { unix.Send(fd, []byte("hello"), 0) },
		"an error":        func(fd int) { sendEvent(fd, eventFatal, func(b []byte) { b[8] = 1 }) },
	} {
		f := newFakeAgent(t)
		say(int(f.guest.Fd()))
		f.guest.Close()
		if err := f.Ready(within(t, testhost.Patience)); err == nil {
			t.Errorf("%s: is ready", name)
		} else if name == "nothing" && !errors.Is(err, ErrGone) {
			t.Errorf("%s: %v, want ErrGone", name, err)
		}
	}
	f := newFakeAgent(t)
	if err := f.Ready(within(t, 10*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
}

// TestAHangingAgentHoldsNobody: it takes no request, or never answers one.
func TestAHangingAgentHoldsNobody(t *testing.T) {
	f := newFakeAgent(t)
	before, goroutines := len(testhost.Descriptors()), runtime.NumGoroutine()
	for range 600 { // more than the socket's buffer takes
		if _, err := f.Start(within(t, time.Millisecond), command("true")); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
	if after := len(testhost.Descriptors()); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	testhost.Eventually(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= goroutines+1 })
}
