package integration

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// The ports of memoryPrelude.
const endlessPort, deafPort = "9000", "9001"

// memoryPrelude fills the buffers of 60 connections. It reads some MiB of each first: the kernel makes the buffers of
// fast connections larger.
const memoryPrelude = `
down, up, got = open_all(30, 9000), open_all(30, 9001), {}
for s in down + up:
    s.setblocking(False)
def some(call):
    try:
        return call()
    except BlockingIOError:
        return 0
while len(got) < 30 or min(got.values()) < 1 << 20:
    for s in down:
        got[s] = got.get(s, 0) + len(some(lambda: s.recv(65536)) or b"")
silent = 0
while silent < 200:
    sent = sum(some(lambda: s.send(bytes(65536))) for s in up)
    silent = 0 if sent else silent + 1
    time.sleep(0.01)
hold(down + up)
`

// A sandbox cannot have much data in the buffers of the worker: the kernel counts it for no sandbox, and tcp_mem
// bounds it for the whole host.
func TestAttackByFullBuffers(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	a := newArena(t)
	a.serveEach(t, worldServer+":"+endlessPort, func(c net.Conn) {
		block := make([]byte, 64<<10)
		for {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	a.serveEach(t, worldServer+":"+deafPort, func(c net.Conn) {
		<-t.Context().Done()
		c.Close()
	})
	if got := a.on(t, "up", "--allow", goodName+":"+endlessPort+"-"+deafPort, "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	t.Cleanup(func() { a.on(t, "down", "box") })
	attacker := begin(t, netnstest.Command(a.command("exec", "box", "python3", "-c", attemptPrelude+loadPrelude+memoryPrelude), a.host))
	defer attacker.kill()
	eventually(t, "the attacker is ready", func() bool {
		if attacker.ended() {
			t.Fatalf("the attacker has ended: %+v", attacker.wait())
		}
		return strings.Contains(attacker.stdout(), "ready")
	})
	const most = 512<<10 + 64<<10 // the kernel begins the last packet while there is room, and a packet has up to 64 KiB
	near := queues(t, a.on(t, "exec", "box", "ss", "-Htn", "state", "established", "src", "198.18.1.0").stdout)
	far := queues(t, netnstest.Shell(t, a.host, "ss -Htn state established"))
	if large := above(near, most); len(near) != 60 || large > 0 {
		t.Errorf("%d of %d connections have large buffers toward the sandbox: %d", large, len(near), near)
	}
	if large := above(far, most); len(far) != 60 || large > 16 {
		t.Errorf("%d of %d connections have large buffers toward the servers: %d", large, len(far), far)
	}
}

// serveEach serves each connection at an address outside.
func (a *arena) serveEach(t *testing.T, address string, serve func(net.Conn)) {
	t.Helper()
	l := netnstest.Listen(t, a.outside, address)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
}

// queues are the bytes in the buffers of each connection, from the lines of ss.
func queues(t *testing.T, lines string) (all []int) {
	t.Helper()
	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)
		received, err := strconv.Atoi(fields[0])
		if err != nil {
			t.Fatal(err)
		}
		sent, err := strconv.Atoi(fields[1])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, received+sent)
	}
	return all
}

func above(all []int, most int) (count int) {
	for _, n := range all {
		if n > most {
			count++
		}
	}
	return count
}
