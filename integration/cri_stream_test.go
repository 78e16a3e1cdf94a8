package integration

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/websocket"
)

// Channels of the protocol v4.channel.k8s.io: the first byte of each message.
const (
	channelStdin = iota
	channelStdout
	channelStderr
	channelStatus
	channelResize
)

// A criStream is a connection to the streaming server of the CRI plugin, for
// exec, attach and port forwarding, as kubectl gets one by the kubelet.
type criStream struct {
	conn   *websocket.Conn
	closed chan struct{} // the server said all
	mu     sync.Mutex    // guards seen
	seen   map[byte]*bytes.Buffer
}

// openStream connects to the address that a call returned.
func openStream(t *testing.T, url string) *criStream {
	t.Helper()
	config, err := websocket.NewConfig(strings.Replace(url, "http://", "ws://", 1), "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	config.Protocol = []string{"v4.channel.k8s.io"}
	conn, err := websocket.DialConfig(config)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	conn.PayloadType = websocket.BinaryFrame
	s := &criStream{conn: conn, closed: make(chan struct{}), seen: map[byte]*bytes.Buffer{}}
	go s.read()
	t.Cleanup(func() {
		conn.Close()
		<-s.closed
	})
	return s
}

func (s *criStream) read() {
	defer close(s.closed)
	for {
		var message []byte
		if websocket.Message.Receive(s.conn, &message) != nil {
			return
		}
		if len(message) == 0 {
			continue
		}
		s.mu.Lock()
		if s.seen[message[0]] == nil {
			s.seen[message[0]] = &bytes.Buffer{}
		}
		s.seen[message[0]].Write(message[1:])
		s.mu.Unlock()
	}
}

func (s *criStream) send(t *testing.T, channel byte, data string) {
	t.Helper()
	if err := websocket.Message.Send(s.conn, append([]byte{channel}, data...)); err != nil {
		t.Fatal(err)
	}
}

func (s *criStream) content(channel byte) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[channel] == nil {
		return ""
	}
	return s.seen[channel].String()
}

func (s *criStream) shows(t *testing.T, channel byte, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("channel %d has %q", channel, text), func() bool {
		select {
		case <-s.closed:
			if !strings.Contains(s.content(channel), text) {
				t.Fatalf("closed; channel %d has %q, status %s", channel, s.content(channel), s.content(channelStatus))
			}
		default:
		}
		return strings.Contains(s.content(channel), text)
	})
}

// ends waits until the server closes and returns its last word, a Status of
// Kubernetes' API in JSON.
func (s *criStream) ends(t *testing.T) string {
	t.Helper()
	eventually(t, "the stream ends", func() bool {
		select {
		case <-s.closed:
			return true
		default:
			return false
		}
	})
	return s.content(channelStatus)
}
