package server

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A client that is refused again and again has some lines in the log, and others theirs.
func TestClientsDoNotFillTheLog(t *testing.T) {
	out := &logged{}
	log := newClientLog(slog.New(slog.NewTextHandler(out, nil)))
	long := errors.New(strings.Repeat("x", 1<<20))
	for range 1000 {
		log.of(7).Warn("refused", "error", long)
	}
	log.of(8).Warn("refused", "error", "short")
	text := out.String()
	if lines := strings.Count(text, "uid=7"); lines < logBurst || lines > logBurst+1 {
		t.Errorf("%d lines of one user", lines)
	}
	if !strings.Contains(text, "uid=8 error=short") || len(text) > 2*logBurst*maxLogText {
		t.Errorf("%d bytes: %.200s", len(text), text)
	}
	// Time that has gone by gives lines back, and the first says how many there were not.
	later := time.Now().Add(logPause)
	if dropped, ok := log.take(7, later); !ok || dropped < 980 {
		t.Errorf("%d lines were not logged, %v", dropped, ok)
	}
	if _, ok := log.take(7, later); ok {
		t.Error("there are two lines more")
	}
}

// One that has very many users has no more than a bounded number of budgets.
func TestUsersOfTheLogAreBounded(t *testing.T) {
	log := newClientLog(slog.New(slog.DiscardHandler))
	now := time.Now()
	lines := 0
	for uid := range uint32(10_000) {
		if _, ok := log.take(uid, now); ok {
			lines++
		}
	}
	if len(log.users) > maxLogUsers || lines > maxLogUsers+logBurst {
		t.Errorf("%d users, %d lines", len(log.users), lines)
	}
	if _, ok := log.take(20_000, now.Add(time.Hour)); !ok || len(log.users) != 1 {
		t.Errorf("an hour later: %v, %s", ok, fmt.Sprint(len(log.users)))
	}
}
