package router

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// firstProcess is a process in place of a sandbox's PID 1.
func firstProcess(t *testing.T) process.ID {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	id, err := process.Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (w *world) publish(t *testing.T, sandbox *os.File, init process.ID, m Member, texts ...string) error {
	t.Helper()
	var ports []spec.PublishedPort
	for _, text := range texts {
		p, err := spec.ParsePublishedPort(text)
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, p)
	}
	return w.doOnHost(func() error { return w.router.Publish(t.Context(), sandbox, init, m.Link, ports) })
}

// published is a sandbox with published ports. It returns the publisher and the sandbox's PID 1, too.
func (w *world) published(t *testing.T, m Member, texts ...string) (sandbox *os.File, publisher, init process.ID) {
	t.Helper()
	sandbox, init = w.attach(t, m), firstProcess(t)
	if err := w.publish(t, sandbox, init, m, texts...); err != nil {
		t.Fatal(err)
	}
	publisher, err := readJSON[process.ID](w.router.publisherFile(m.Link))
	if err != nil {
		t.Fatal(err)
	}
	return sandbox, publisher, init
}

func TestPublishedPortsLeadIntoTheSandbox(t *testing.T) {
	w := newWorld(t)
	one, _, _ := w.published(t, Member{Link: "s-one", Number: 1},
		"8080:80", "8080:80/udp", "8081:81", "8081:81/udp", "8082:82", "8083:83", hostIPv4+":8084:80", hostIPv4+":8084:80/udp", "[::1]:8085:80")
	serve(t, one, "127.0.0.1:80")
	serve(t, one, "0.0.0.0:81")
	serve(t, one, "[::1]:82")
	wantAnswer(t, w.host, "127.0.0.1:8080", "127.0.0.1")
	wantAnswer(t, w.host, "127.0.0.1:8081", "127.0.0.1")
	wantAnswer(t, w.internet, hostIPv4+":8084", "127.0.0.1")
	for address, want := range map[string]string{"127.0.0.1:8082": "::1", "[::1]:8085": "127.0.0.1"} {
		if got, err := exchange(w.host, "tcp", address); err != nil || got != want {
			t.Errorf("%s: %q, %v", address, got, err)
		}
	}
	if _, err := exchange(w.host, "tcp", "127.0.0.1:8083"); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		t.Errorf("without a server: %v", err)
	}
	wantRefusal(t, w.internet, hostIPv4+":8080")
}

// Each direction of a connection ends by itself. All bytes arrive.
func TestAPublishedConnectionCanBeHalfClosed(t *testing.T) {
	testhost.Concurrent(t)
	w := newWorld(t)
	one, _, _ := w.published(t, Member{Link: "s-one", Number: 1}, "8080:80")
	l := netnstest.Listen(t, one, "127.0.0.1:80")
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		all, _ := io.ReadAll(c)
		_, _ = c.Write(all)
	}()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	c := dial(t, w.host, "tcp", "127.0.0.1:8080").(*net.TCPConn)
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d, %v", len(got), len(sent), err)
	}
}

func TestATakenPortIsAnError(t *testing.T) {
	w := newWorld(t)
	netnstest.Listen(t, w.host, "127.0.0.1:8080")
	m := Member{Link: "s-one", Number: 1}
	one := w.attach(t, m)
	err := w.publish(t, one, firstProcess(t), m, "8081:81", "8080:80")
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(fmt.Sprint(err), "--publish 127.0.0.1:8080:80: ") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(w.router.publisherFile(m.Link)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the publisher's file: %v", err)
	}
	netnstest.Listen(t, w.host, "127.0.0.1:8081") // it is free again
}

func TestThePublisherIsNobody(t *testing.T) {
	w := newWorld(t)
	_, publisher, _ := w.published(t, Member{Link: "s-one", Number: 1}, "8080:80")
	wantNobody(t, publisher)
}

// The host's port is free when Detach returns, and connections of it have ended.
func TestDetachClosesPublishedPorts(t *testing.T) {
	w := newWorld(t)
	m := Member{Link: "s-one", Number: 1}
	one, publisher, _ := w.published(t, m, "8080:80", "8080:80/udp")
	l := netnstest.Listen(t, one, "127.0.0.1:80")
	client := dial(t, w.host, "tcp", "127.0.0.1:8080")
	accept(t, l)
	w.detach(t, one, m.Link)
	if publisher.Lives() {
		t.Error("the publisher lives")
	}
	if err := client.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := client.Read(make([]byte, 1)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("a client: %v", err)
	}
	wantRefusal(t, w.host, "127.0.0.1:8080")
	if left, err := filepath.Glob(w.router.publisherFile("*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestThePublisherEndsWithTheFirstProcess(t *testing.T) {
	w := newWorld(t)
	_, publisher, init := w.published(t, Member{Link: "s-one", Number: 1}, "8080:80")
	if err := init.End(patience); err != nil {
		t.Fatal(err)
	}
	testhost.Eventually(t, "the publisher has ended", func() bool { return !publisher.Lives() })
}

func TestPruneEndsThePublishersOfGoneSandboxes(t *testing.T) {
	w := newWorld(t)
	_, gone, _ := w.published(t, Member{Link: "s-gone", Number: 1}, "8080:80")
	two, stays, _ := w.published(t, Member{Link: "s-live", Number: 2}, "8081:80")
	draft := w.router.publisherFile("s-draft") + ".new"
	if err := os.WriteFile(draft, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	serve(t, two, "127.0.0.1:80")
	isLive := func(link string) (bool, error) { return link == "s-live", nil }
	if err := w.doOnHost(func() error { return w.router.Prune(t.Context(), isLive) }); err != nil {
		t.Fatal(err)
	}
	if gone.Lives() || !stays.Lives() {
		t.Errorf("the publisher of the gone sandbox lives: %v, the other one: %v", gone.Lives(), stays.Lives())
	}
	for _, file := range []string{draft, w.router.publisherFile("s-gone")} {
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", file, err)
		}
	}
	if got, err := exchange(w.host, "tcp", "127.0.0.1:8081"); err != nil || got != "127.0.0.1" {
		t.Errorf("the other sandbox: %q, %v", got, err)
	}
}
