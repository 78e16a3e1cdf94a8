package agent

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// onTerminal starts a command on a terminal of 30 by 100 characters.
func (s *sandbox) onTerminal(t testing.TB, script string) *Process {
	t.Helper()
	c := command("sh", "-c", script)
	c.TTY = &Winsize{Rows: 30, Columns: 100}
	p, err := s.Start(within(t, testhost.Patience), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// readUntil returns what was read once mark was, or at the terminal's end.
func readUntil(t testing.TB, f *os.File, mark string) string {
	t.Helper()
	f.SetReadDeadline(time.Now().Add(testhost.Patience))
	var text bytes.Buffer
	for part := make([]byte, 4096); mark == "" || !strings.Contains(text.String(), mark); {
		n, err := f.Read(part)
		text.Write(part[:n])
		if errors.Is(err, unix.EIO) || err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("read of the terminal after %q: %v", &text, err)
		}
	}
	return strings.ReplaceAll(text.String(), "\r\n", "\n")
}

func TestTerminalIsTheCommandsOwn(t *testing.T) {
	s := open(t)
	p := s.onTerminal(t, `test -t 0 && test -t 1 && test -t 2 && echo is a terminal
		tty; stty size; stat -c %u:%a $(tty); ls /proc/self/fd | wc -w
		ps -o tty= 2>/dev/null; echo through /dev/tty >/dev/tty`)
	out := readUntil(t, p.Terminal(), "")
	// Four descriptors: 0 to 2, and the one with which ls reads.
	for _, want := range []string{"is a terminal\n/dev/pts/0\n30 100\n1000:620\n4\n", "through /dev/tty\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
	if exit, err := p.Wait(within(t, testhost.Patience)); err != nil || exit.Status != 0 {
		t.Errorf("status %#x, %v", exit.Status, err)
	}
}

// Newlines come as the command asks, from the first byte. An older agent refuses the flag,
// so that it must not get the flag.
func TestTerminalPassesNewlinesAsAsked(t *testing.T) {
	s := open(t)
	current := s.version
	for _, test := range []struct {
		plain   bool
		version int32
		want    string
	}{
		{false, current, "a\r\nb\r\n"},
		{true, current, "a\nb\n"},
		{true, newlinesVersion - 1, "a\r\nb\r\n"},
	} {
		s.version = test.version
		c := command("printf", `a\nb\n`)
		c.TTY, c.PlainNewlines = &Winsize{Rows: 30, Columns: 100}, test.plain
		p, err := s.Start(within(t, testhost.Patience), c)
		if err != nil {
			t.Fatal(err)
		}
		p.Terminal().SetReadDeadline(time.Now().Add(testhost.Patience))
		text := make([]byte, len(test.want))
		if _, err := io.ReadFull(p.Terminal(), text); err != nil || string(text) != test.want {
			t.Errorf("%+v: %q, %v", test, text, err)
		}
		p.Close()
	}
}

func TestTerminalCarriesInputSizeAndCtrlC(t *testing.T) {
	s := open(t)
	p := s.onTerminal(t, `read line; echo "got $line"
		trap 'stty size; echo resized' WINCH; echo waiting; while :; do sleep 0.01; done`)
	tty := p.Terminal()
	tty.WriteString("hello\n")
	if out := readUntil(t, tty, "waiting"); !strings.Contains(out, "got hello") {
		t.Errorf("read %q", out)
	}
	raw, err := tty.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 11, Col: 22})
	})
	if err != nil {
		t.Fatal(err)
	}
	if out := readUntil(t, tty, "resized"); !strings.Contains(out, "11 22") {
		t.Errorf("after the resize: %q", out)
	}
	tty.WriteString("\x03")
	exit, err := p.Wait(within(t, testhost.Patience))
	if err != nil || exit.Status.Signal() != unix.SIGINT {
		t.Errorf("after Ctrl-C: status %#x, %v", exit.Status, err)
	}
}

// TestTerminalNeedsATerminal: id 0 inside may own /dev, and put anything there.
func TestTerminalNeedsATerminal(t *testing.T) {
	for name, script := range map[string]string{
		"nothing":   `rm /dev/ptmx`,
		"a file":    `rm /dev/ptmx; echo >/dev/ptmx; chmod 666 /dev/ptmx`,
		"a FIFO":    `rm /dev/ptmx; mkfifo -m 666 /dev/ptmx`,
		"null":      `ln -sf null /dev/ptmx`,
		"a program": `ln -sf /usr/bin/true /dev/ptmx`,
		"itself":    `ln -sf ptmx /dev/ptmx`,
		"the agent": `ln -sf /proc/1/fd/3 /dev/ptmx`,
	} {
		s := open(t)
		c := command("sh", "-c", script)
		c.UID, c.GID = 0, 0
		s.mustRun(t, c)
		for _, id := range []uint32{0, 1000} {
			c = command("true")
			c.TTY = &Winsize{}
			c.UID, c.GID = id, id
			_, err := s.Start(within(t, testhost.Patience), c)
			var start *StartError
			if !errors.As(err, &start) || start.Stage != StageTerminal {
				t.Errorf("/dev/ptmx is %s, id %d: %v", name, id, err)
			}
		}
		s.serves(t)
	}
}
