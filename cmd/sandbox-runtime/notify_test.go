package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// serviceManager plays the part of systemd: it collects messages and answers
// barriers.
func serviceManager(t *testing.T, path string) <-chan string {
	t.Helper()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	messages := make(chan string, 16)
	go func() {
		defer close(messages)
		buf, oob := make([]byte, 4096), make([]byte, 256)
		for {
			n, oobn, _, _, err := socket.ReadMsgUnix(buf, oob)
			if err != nil {
				return
			}
			if list, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
				for i := range list {
					if fds, err := unix.ParseUnixRights(&list[i]); err == nil && len(fds) == 1 {
						unix.Close(fds[0])
					}
				}
			}
			messages <- strings.TrimSpace(string(buf[:n]))
		}
	}()
	t.Cleanup(func() { socket.Close() })
	return messages
}

// Of what a container says, READY alone reaches the host; the main process is
// named by the runtime, whatever the container claims.
func TestReadinessReachesTheServiceManager(t *testing.T) {
	for _, detached := range []bool{true, false} {
		h := newHost(t)
		path := filepath.Join(h.dir, "manager")
		messages := serviceManager(t, path)
		t.Setenv("NOTIFY_SOCKET", path)
		bundle := h.bundle(nil, "notify")
		if detached {
			h.must("create", "-b", bundle, h.id())
			pid := itoa(h.state(h.id()).Pid)
			h.must("start", h.id())
			wantMessages(t, messages, "READY=1", "MAINPID="+pid, "BARRIER=1")
			continue
		}
		cmd := h.command("run", "-b", bundle, h.id())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		wantMessages(t, messages, "READY=1", "MAINPID="+itoa(cmd.Process.Pid), "BARRIER=1")
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func wantMessages(t *testing.T, messages <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-messages:
			if got != w {
				t.Errorf("manager got %q, want %q", got, w)
			}
		case <-time.After(testhost.Patience):
			t.Fatalf("manager never got %q", w)
		}
	}
}

func TestStartDoesNotWaitForAContainerThatIsNeverReady(t *testing.T) {
	h := newHost(t)
	path := filepath.Join(h.dir, "manager")
	serviceManager(t, path)
	t.Setenv("NOTIFY_SOCKET", path)
	h.must("run", "-d", "-b", h.bundle(nil, "exit", "0"), h.id())
}
