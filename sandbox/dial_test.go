package sandbox_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// echo answers at each address of its arguments, NETWORK/HOST/PORT, and then says so.
const echo = `
import socket, sys, threading
def stream(s):
    while True:
        c, _ = s.accept()
        with c:
            while data := c.recv(4096): c.sendall(data)
def packets(s):
    while True:
        data, peer = s.recvfrom(4096)
        s.sendto(data, peer)
for arg in sys.argv[1:]:
    network, host, port = arg.split("/")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_DGRAM if network == "udp" else socket.SOCK_STREAM)
    s.bind((host, int(port)))
    if network == "tcp": s.listen()
    threading.Thread(target=packets if network == "udp" else stream, args=[s]).start()
print("ready", flush=True)
`

func startEcho(t *testing.T, sb *sandbox.Sandbox, addresses ...string) {
	t.Helper()
	out, in := io.Pipe()
	p, err := sb.Start(t.Context(), sandbox.Command{
		Args: append([]string{"python3", "-c", echo}, addresses...), Stdout: in, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill(); _, _ = p.Wait(); in.Close() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the server: %q, %v", line, err)
	}
}

func wantEcho(t *testing.T, sb *sandbox.Sandbox, network, address string) {
	t.Helper()
	c, err := sb.Dial(t.Context(), network, address)
	if err != nil {
		t.Errorf("%s %s: %v", network, address, err)
		return
	}
	defer c.Close()
	word := []byte("word of " + address)
	got := make([]byte, len(word))
	err = c.SetDeadline(time.Now().Add(10 * time.Second))
	if err == nil {
		_, err = c.Write(word)
	}
	if err == nil {
		_, err = io.ReadFull(c, got)
	}
	if err != nil || string(got) != string(word) {
		t.Errorf("%s %s: %q, %v", network, address, got, err)
	}
	if _, isTCP := c.(*net.TCPConn); isTCP != strings.HasPrefix(network, "tcp") {
		t.Errorf("%s: the connection is a %T", network, c)
	}
}

// A sandbox without a network answers on its own loopback device.
func TestDialReachesPortsOfASandboxWithoutNetwork(t *testing.T) {
	sb := create(t, newIsolated(t), sandbox.Config{})
	startEcho(t, sb, "tcp/127.0.0.1/8080", "tcp/::1/8081", "tcp/0.0.0.0/8082", "udp/127.0.0.1/8083", "udp/::1/8084")
	for _, d := range []struct{ network, address string }{
		{"tcp", ":8080"}, {"tcp", "localhost:8080"}, {"tcp4", "127.0.0.1:8080"}, {"tcp", ":8081"}, {"tcp6", ":8081"}, {"tcp", "[::1]:8081"},
		{"tcp", "127.1.2.3:8082"}, {"udp", ":8083"}, {"udp4", "localhost:8083"}, {"udp6", "localhost:8084"},
	} {
		wantEcho(t, sb, d.network, d.address)
	}
	other := create(t, newIsolated(t), sandbox.Config{})
	if c, err := other.Dial(t.Context(), "tcp", ":8080"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a port of another sandbox: %v, %v", c, err)
	}
}

func TestDialNeedsARunningSandbox(t *testing.T) {
	m := newIsolated(t)
	sb := create(t, m, sandbox.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sb.Dial(ctx, "tcp", ":80"); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	stop(t, sb)
	if _, err := sb.Dial(t.Context(), "tcp", ":80"); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("a stopped sandbox: %v", err)
	}
	if err := m.Remove(t.Context(), sb.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Dial(t.Context(), "tcp", ":80"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a removed sandbox: %v", err)
	}
}
