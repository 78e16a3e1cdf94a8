package server

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A launcher that ends finishes a join, and the client gets the Result, also after the grace.
func TestShutdownWaitsForAJoin(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	box(t, c, "box")
	p := start(t, c, "box", "join")
	type end struct {
		result spec.Result
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		r, err := p.Wait(t.Context())
		ended <- end{r, err}
	}()
	<-p.Joining()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	down := make(chan struct{})
	go func() { w.Shutdown(over); close(down) }()
	testhost.Eventually(t, "the end of the grace", func() bool { return w.ctx.Err() != nil })
	select {
	case <-down:
		t.Fatal("the launcher did not wait for the join")
	case got := <-ended:
		t.Fatalf("the client has a result before the join has ended: %+v", got)
	default:
	}
	if err := p.Signal(unix.SIGKILL, true); err != nil { // ends this join
		t.Fatal(err)
	}
	if got := <-ended; got.err != nil || got.result.Status != spec.StatusExited {
		t.Errorf("the client got %+v", got)
	}
	<-down
}

// A client that reads nothing cannot keep the launcher from its end after a join.
func TestAFullSocketEndsWithTheLauncherAfterAJoin(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	box(t, c, "box")
	h := newHostileClient(t, w, 0)
	h.hello()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	body := about("start", "box", `{"command":{"args":["join"]}}`)
	if _, err := unix.Write(pair[0], []byte(frame(0, body)+frame(0, `{"tell_join":true}`))); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; { // fill the launcher's direction
		_, err = unix.Write(pair[1], make([]byte, 1<<10))
	}
	h.send(frame(1, ""), pair[1])
	unix.Close(pair[1])
	testhost.Eventually(t, "the join", func() bool { return w.joins.Load() == 1 })
	over, cancel := context.WithCancel(context.Background())
	cancel()
	down := make(chan struct{})
	go func() { w.Shutdown(over); close(down) }()
	testhost.Eventually(t, "the end of the grace", func() bool { return w.ctx.Err() != nil })
	if _, err := unix.Write(pair[0], []byte(frame(0, `{"signal":9,"tree":true}`))); err != nil { // ends this join
		t.Fatal(err)
	}
	select {
	case <-down:
	case <-time.After(10 * lastWord):
		t.Error("the launcher does not end")
		unix.Shutdown(pair[0], unix.SHUT_RDWR)
		<-down
	}
}

func TestTheEndWaitsForJoinsInVainForABoundedTime(t *testing.T) {
	w := newWorld(t)
	w.joins.Add(1)
	defer w.joins.Add(-1)
	begun := time.Now()
	if w.awaitJoins(20 * time.Millisecond); time.Since(begun) < 20*time.Millisecond {
		t.Error("it did not wait")
	}
}
