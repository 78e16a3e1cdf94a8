package agent

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// TestHostsComeAndGo shows that an agent with a listener outlives each of its
// connections, and serves several at once.
func TestHostsComeAndGo(t *testing.T) {
	s, path := openListening(t)
	s.serves(t)
	first, second := s.connect(t, path), s.connect(t, path)
	s.Close()
	p, _ := first.begin(t, command("sleep", "1000"))
	second.serves(t)
	first.serves(t)
	first.Close()
	second.serves(t)
	// The exec's own socket is its life, not the connection.
	p.Close()
	testhost.Eventually(t, "no process but two", func() bool { return len(second.inside(t)) == 2 })
	second.Close()
	last := s.connect(t, path)
	last.serves(t)
	testhost.Eventually(t, "seven descriptors", func() bool { return s.descriptors(t) == 7 })
}

func TestTiedAgentEndsWithItsConnection(t *testing.T) {
	s, path := openListening(t)
	other := s.connect(t, path)
	tied := s.connect(t, path)
	if err := tied.Tie(within(t, testhost.Patience)); err != nil {
		t.Fatal(err)
	}
	p, _ := other.begin(t, command("sleep", "1000"))
	s.Close()
	other.serves(t)
	tied.Close()
	if _, err := p.Wait(within(t, testhost.Patience)); !errors.Is(err, ErrGone) {
		t.Errorf("wait: %v, want ErrGone", err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("agent: %v, want status 0", err)
	}
	if _, err := Dial(within(t, testhost.Patience), path); !errors.Is(err, ErrGone) {
		t.Errorf("connect to an agent that has ended: %v, want ErrGone", err)
	}
}

// TestTieIsReadBeforeTheEnd closes with what the agent said unread, which the
// kernel tells the agent before it gives it what was sent.
func TestTieIsReadBeforeTheEnd(t *testing.T) {
	s := start(t, listening(t, filepath.Join(t.TempDir(), "agent.sock")))
	unread := unix.PollFd{Events: unix.POLLIN}
	if err := s.control.withDescriptor(func(fd uintptr) { unread.Fd = int32(fd) }); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Poll([]unix.PollFd{unread}, int(testhost.Patience.Milliseconds())); n != 1 {
		t.Fatalf("no greeting: %v", err)
	}
	if err := s.Tie(within(t, testhost.Patience)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	defer time.AfterFunc(testhost.Patience, func() { s.cmd.Process.Kill() }).Stop()
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("agent: %v, want status 0", err)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	s, path := openListening(t)
	var all []*sandbox
	for range 63 { // beside the first
		all = append(all, s.connect(t, path))
	}
	for range 3 {
		if _, err := Dial(within(t, testhost.Patience), path); err == nil || !strings.Contains(err.Error(), StageConnections.String()) {
			t.Fatalf("one too many: %v", err)
		}
	}
	all[30].Close()
	testhost.Eventually(t, "a place", func() bool {
		c, err := Dial(within(t, testhost.Patience), path)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	all[62].serves(t)
}

// TestHostileConnectionHoldsUpNobody floods one connection with what no host of
// this version sends, and reads nothing.
func TestHostileConnectionHoldsUpNobody(t *testing.T) {
	testhost.Concurrent(t)
	s, path := openListening(t)
	flood := s.connect(t, path)
	over := make(chan struct{})
	defer func() { <-over }()
	go func() {
		defer close(over)
		valid := request{kind: requestExec}.encode()
		for i := range 3000 {
			message := bytes.Clone(valid)
			message[i%requestSize] ^= byte(i/requestSize) + 1
			if message[0] == byte(requestTie) {
				continue
			}
			flood.control.send(context.Background(), message[:requestSize-i%2], []int{0, 1, 2}[:i%4%3])
		}
		for _, kind := range []requestKind{0, requestExec, requestSignal, requestAttach, requestList, requestForget, 7, 1 << 31} {
			flood.control.send(context.Background(), request{kind: kind}.encode(), nil)
		}
		flood.Close()
	}()
	for range 20 {
		s.serves(t)
	}
	<-over
	testhost.Eventually(t, "seven descriptors", func() bool { return s.descriptors(t) == 7 })
}

func TestDialSaysWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	if _, err := Dial(within(t, testhost.Patience), filepath.Join(dir, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
	if _, err := Dial(within(t, testhost.Patience), filepath.Join(dir, "nowhere", "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nowhere: %v", err)
	}
	if _, err := Listen(filepath.Join(dir, "nowhere", "agent.sock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("listen nowhere: %v", err)
	}
	path := filepath.Join(dir, "agent.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Listen(path); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("listen twice: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	// An agent that takes nobody, as one that is paused does.
	for range backlog + 5 {
		if _, err := Dial(within(t, 20*time.Millisecond), path); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("no agent takes this: %v", err)
		}
	}
	l.Close()
	if _, err := Dial(within(t, testhost.Patience), path); !errors.Is(err, ErrGone) {
		t.Errorf("a listener that has gone: %v", err)
	}
}

func TestListenersPathMayBeLong(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 200))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "agent.sock")
	s := open(t, listening(t, path))
	s.connect(t, path).serves(t)
}

// TestVersionsThatDifferSayWhatToDo names both, and a way out.
func TestVersionsThatDifferSayWhatToDo(t *testing.T) {
	for _, test := range []struct {
		version byte
		want    string
	}{
		{protocolVersion + 1, "speaks version 7 of the protocol, this sandbox-runtime 2 to 6: use the newer sandbox-runtime that made it, or make it anew"},
		{oldestVersion - 1, "speaks version 1 of the protocol, this sandbox-runtime 2 to 6: make the sandbox anew"},
	} {
		f := newFakeAgent(t)
		sendEvent(int(f.guest.Fd()), eventHello, func(b []byte) { b[8] = test.version })
		err := f.Ready(within(t, testhost.Patience))
		var differ *VersionError
		if !errors.As(err, &differ) || !strings.HasSuffix(err.Error(), test.want) {
			t.Errorf("%d: %v, want %s", test.version, err, test.want)
		}
	}
}

// TestAgentRefusesOtherListeners gives it what is no listener.
func TestAgentRefusesOtherListeners(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer descriptor.CloseFD(pair[1])
	stream, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Bind(stream, &unix.SockaddrUnix{}), unix.Listen(stream, 1)); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*os.File{
		"connected": os.NewFile(uintptr(pair[0]), "pair"),
		"stream":    os.NewFile(uintptr(stream), "stream"),
		"null":      null,
	} {
		s := start(t, func(c *exec.Cmd) { c.ExtraFiles[2] = f })
		if err := s.Ready(within(t, testhost.Patience)); err == nil || !strings.Contains(err.Error(), StageListener.String()) {
			t.Errorf("%s: %v", name, err)
		}
		s.exits(t, name, StageListener)
	}
}

// TestListenerThatWasShutDownIsForgotten looks at the agent's sleep: epoll(7)
// goes on telling of such a listener.
func TestListenerThatWasShutDownIsForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	f, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	ours := f
	s := open(t, func(c *exec.Cmd) { c.ExtraFiles[2] = os.NewFile(uintptr(theirs), path) })
	if err := unix.Shutdown(int(ours.Fd()), unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	ours.Close()
	s.serves(t)
	// Once it is done with the command before.
	testhost.Eventually(t, "the agent sleeps for a tenth of a second", func() bool {
		before := s.hostFile(t, "schedstat")
		time.Sleep(100 * time.Millisecond)
		return s.hostFile(t, "schedstat") == before
	})
	s.serves(t)
}
