package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A client that is refused again and again has some lines in the log, and others theirs.
func TestClientsDoNotFillTheLog(t *testing.T) {
	out := &capturedLog{}
	log := newClientLog(slog.New(slog.NewTextHandler(out, nil)))
	long := errors.New(strings.Repeat("x", 1<<20))
	for range 1000 {
		log.forUser(7).Warn("refused", "error", long)
	}
	log.forUser(8).Warn("refused", "error", "short")
	text := out.String()
	if lines := strings.Count(text, "uid=7"); lines < logBurst || lines > logBurst+1 {
		t.Errorf("%d lines of one user", lines)
	}
	if !strings.Contains(text, "uid=8 error=short") || len(text) > 2*logBurst*maxLogText {
		t.Errorf("%d bytes: %.200s", len(text), text)
	}
	// Time that has gone by gives lines back, and the first says how many there were not.
	later := time.Now().Add(logPause)
	if dropped, ok := log.takeLine(7, later); !ok || dropped < 980 {
		t.Errorf("%d lines were not logged, %v", dropped, ok)
	}
	if _, ok := log.takeLine(7, later); ok {
		t.Error("there are two lines more")
	}
}

// One that has very many users has no more than a bounded number of budgets.
func TestUsersOfTheLogAreBounded(t *testing.T) {
	log := newClientLog(slog.New(slog.DiscardHandler))
	now := time.Now()
	lines := 0
	for uid := range uint32(10_000) {
		if _, ok := log.takeLine(uid, now); ok {
			lines++
		}
	}
	if len(log.users) > maxLogUsers || lines > maxLogUsers+logBurst {
		t.Errorf("%d users, %d lines", len(log.users), lines)
	}
	if _, ok := log.takeLine(20_000, now.Add(time.Hour)); !ok || len(log.users) != 1 {
		t.Errorf("an hour later: %v, %s", ok, fmt.Sprint(len(log.users)))
	}
}

// A descriptorShortage is a Source for which the process has no descriptor left at each second
// accept. After count refusals it is closed.
type descriptorShortage struct {
	count int
	short bool
}

func (d *descriptorShortage) AcceptUnix() (*net.UnixConn, error) {
	if d.short = !d.short; !d.short {
		ours, theirs, err := descriptor.UnixPair()
		if err != nil {
			return nil, err
		}
		return ours, theirs.Close()
	}
	if d.count--; d.count < 0 {
		return nil, net.ErrClosed
	}
	return nil, unix.EMFILE
}

// A client can bring the launcher to its limit of descriptors again and again.
func TestFailedAcceptsDoNotFillTheLog(t *testing.T) {
	w := newWorld(t)
	if err := w.Serve(&descriptorShortage{count: 100}); err != nil {
		t.Fatal(err)
	}
	text := w.log.String()
	if lines := strings.Count(text, "accept a connection"); lines < logBurst || lines > logBurst+1 || strings.Contains(text, "uid=") {
		t.Errorf("%d lines: %.300s", lines, text)
	}
}

// A client can tie many sandboxes to its connections.
func TestFailedRemovalsDoNotFillTheLog(t *testing.T) {
	w := newWorld(t, Rule{User: "7"})
	trunk := newTrunk(w.Server, nil, newPeer(w.rules.forUser(7), semaphore.NewWeighted(maxDescriptors)), nil)
	for i := range 100 {
		trunk.tie(spec.Info{ID: fmt.Sprint("box", i)})
	}
	w.core.failRemovals(errors.New("busy"))
	trunk.removeTied()
	if lines := strings.Count(w.log.String(), "client has gone"); lines != logBurst {
		t.Errorf("%d lines", lines)
	}
}
