package server

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// A clientLog logs the actions of clients. Each user has a few lines at once and then one line in
// each logPause. Lines have a bounded length, so that no client fills the log's disk.
type clientLog struct {
	log *slog.Logger

	// mu guards the fields below.
	mu    sync.Mutex
	users map[uint32]*logBudget
	// rest is shared by the users for which there is no room.
	rest logBudget
}

// A logBudget is how many lines a user has left.
type logBudget struct {
	left    int
	since   time.Time // the last grant of lines
	dropped int       // lines that were not logged since the last logged line
}

const (
	// logBurst is how many lines a user has at once. Later the user has one line each logPause.
	logBurst = 10
	logPause = 10 * time.Second
	// maxLogUsers bounds the users that have a budget of their own.
	maxLogUsers = 256
	// maxLogText bounds an error in a line, in bytes.
	maxLogText = 1 << 10
)

// noUser is the user of lines that no single client causes: the launcher as a whole has a budget
// for them. It is no user id of the kernel (include/linux/uidgid.h:uid_valid).
const noUser = ^uint32(0)

func newClientLog(log *slog.Logger) *clientLog {
	return &clientLog{log: log, users: map[uint32]*logBudget{}}
}

// A userLog is the clientLog for one user.
type userLog struct {
	*clientLog
	uid uint32
}

func (l *clientLog) forUser(uid uint32) userLog { return userLog{l, uid} }

// forAll is for lines that no single client causes.
func (l *clientLog) forAll() userLog { return userLog{l, noUser} }

// Warn logs a line about the user, if the user has one left.
func (l userLog) Warn(text string, args ...any) { l.write(l.log.Warn, text, args) }

// Error is Warn with the level Error.
func (l userLog) Error(text string, args ...any) { l.write(l.log.Error, text, args) }

func (l userLog) write(log func(string, ...any), text string, args []any) {
	dropped, ok := l.takeLine(l.uid, time.Now())
	if !ok {
		return
	}
	var short []any
	if l.uid != noUser {
		short = []any{"uid", l.uid}
	}
	for _, arg := range args {
		short = append(short, shorten(arg))
	}
	if dropped > 0 {
		short = append(short, "lines_not_logged", dropped)
	}
	log(text, short...)
}

// shorten bounds a value of a line.
func shorten(arg any) any {
	text, ok := arg.(string)
	if err, isError := arg.(error); isError {
		text, ok = err.Error(), true
	}
	switch {
	case !ok:
		return arg
	case len(text) > maxLogText:
		return fmt.Sprintf("%s … (%d bytes)", text[:maxLogText], len(text))
	}
	return text
}

// takeLine takes a line of the user's budget. dropped is how many lines were refused before.
func (l *clientLog) takeLine(uid uint32, now time.Time) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.users[uid]
	if b == nil {
		b = l.addLocked(uid, now)
	}
	if granted := int(now.Sub(b.since) / logPause); granted > 0 {
		b.left = min(b.left+granted, logBurst)
		b.since = now
	}
	if b.left <= 0 {
		b.dropped++
		return 0, false
	}
	b.left--
	dropped, b.dropped = b.dropped, 0
	return dropped, true
}

// addLocked gives a user a budget. If there are too many users, it drops the users whose budget is
// full again.
func (l *clientLog) addLocked(uid uint32, now time.Time) *logBudget {
	if len(l.users) >= maxLogUsers {
		for other, b := range l.users {
			if now.Sub(b.since) > logBurst*logPause {
				delete(l.users, other)
			}
		}
	}
	if len(l.users) >= maxLogUsers {
		return &l.rest
	}
	b := &logBudget{left: logBurst, since: now}
	l.users[uid] = b
	return b
}
