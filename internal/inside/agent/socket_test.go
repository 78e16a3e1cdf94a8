package agent

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// Who sends and closes at once has sent, however that meets the one who looks.
func TestAMessageIsTakenBeforeTheEnd(t *testing.T) {
	testhost.Concurrent(t)
	message := make([]byte, eventSize)
	message[0] = byte(eventHello)
	const tries = 20_000
	others := make(chan int)
	defer close(others)
	go func() {
		for fd := range others {
			unix.Send(fd, message, unix.MSG_DONTWAIT)
			unix.Close(fd)
		}
	}()
	for i := range tries {
		ours, theirs, err := newSocket("pair")
		if err != nil {
			t.Fatal(err)
		}
		others <- theirs
		for came := false; !came; {
			if _, came, err = ours.tryReceive(); err != nil {
				t.Fatalf("of %d, number %d: %v", tries, i, err)
			}
		}
		if err := ours.close(); err != nil {
			t.Fatal(err)
		}
	}
}
