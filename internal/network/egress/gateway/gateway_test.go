package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
)

// The state of many boxes comes whole, also if orders are longer than the buffer of the socket.
func TestLargeOrdersComeWithTheirSockets(t *testing.T) {
	conn, theirs, err := descriptor.UnixPair()
	if err != nil {
		t.Fatal(err)
	}
	parent, err := channel.OfConn(conn, 0)
	if err != nil {
		t.Fatal(err)
	}
	worker, err := fileChannel(theirs)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan struct{})
	defer func() { worker.Close(); <-sent }()
	const count = 50
	go func() {
		defer close(sent)
		defer parent.Close()
		for i := range uint32(count) {
			o := link.Order{Number: i + 1, Box: &link.Box{Key: strings.Repeat("k", 1000*int(i%50)+int(i))}}
			if err := sendWithSockets(parent, o); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for i := range uint32(count) {
		body, files, err := worker.Receive(t.Context(), link.MaxOrder)
		if err != nil {
			t.Fatal(err)
		}
		descriptor.Close(files...)
		var o link.Order
		if err := json.Unmarshal(body, &o); err != nil || o.Number != i+1 || len(files) != link.MaxSockets {
			t.Fatalf("order %d: number %d with %d sockets, %v", i+1, o.Number, len(files), err)
		}
	}
	if _, _, err := worker.Receive(t.Context(), link.MaxOrder); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func sendWithSockets(to *channel.Conn, o link.Order) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	files := make([]*os.File, link.MaxSockets)
	for i := range files {
		files[i] = f
	}
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return to.Send(context.Background(), body, files...)
}
