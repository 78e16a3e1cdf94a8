package agent

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"
)

// The protocol of cmd/sandbox-agent/protocol.h. Both ends run on one machine:
// numbers are in its own order.
const (
	protocolVersion = 6 // the version of the agent embedded here
	oldestVersion   = 2 // of an agent that is still understood
	rootVersion     = 3 // the first that takes a command's root
	programVersion  = 3 // the first that takes its program
	newlinesVersion = 4 // the first that takes PlainNewlines
	withholdVersion = 5 // the first that takes Withhold
	ringVersion     = 6 // the first that keeps head and tail of a detached command's output
	agentID         = 65535
	maxPayload      = 8 << 20
	maxGroups       = 256
	maxRlimits      = 16
	maxTasks        = 12
	maxDetached     = 256
	idSize          = 16

	requestSize = 56
	eventSize   = 40
)

type requestKind uint32

const (
	requestExec     requestKind = 1
	requestSignal   requestKind = 2
	requestTie      requestKind = 3
	requestAttach   requestKind = 4
	requestList     requestKind = 5
	requestForget   requestKind = 6
	requestWithhold requestKind = 7
)

// The parts of an exec's request beside stdio and tasks files.
const (
	withCgroup  = 1
	withOutput  = 2
	withNetwork = 4
	withRoot    = 8
	withProgram = 16
)

// The flags of a payload.
const (
	payloadTTY           = 1
	payloadPlainNewlines = 2
)

type eventKind uint32

const (
	eventHello    eventKind = 1
	eventFatal    eventKind = 2
	eventFailed   eventKind = 3
	eventTerminal eventKind = 4
	eventExited   eventKind = 5
	eventAttached eventKind = 6
	eventDrained  eventKind = 7
	eventList     eventKind = 8
	eventWithheld eventKind = 9
)

// request is a request of the host.
type request struct {
	kind    requestKind
	stdio   uint32 // exec: bit n is set where descriptor n is passed
	with    uint32 // exec: the other passed parts
	tasks   int    // exec: how many
	payload int    // exec: its size
	signal  syscall.Signal
	group   bool   // signal: the process group, not only the process
	limit   int64  // exec, detached
	id      ExecID // exec, detached; attach; forget
}

func (r request) encode() []byte {
	group := uint32(0)
	if r.group {
		group = 1
	}
	b := make([]byte, 0, requestSize)
	for _, word := range [...]uint32{
		uint32(r.kind), r.stdio, r.with, uint32(r.tasks),
		uint32(r.payload), uint32(r.signal), group, 0,
	} {
		b = binary.NativeEndian.AppendUint32(b, word)
	}
	b = binary.NativeEndian.AppendUint64(b, uint64(r.limit))
	return append(b, r.id[:]...)
}

// An event is a report of the agent, or of one of its children. Only the fields of its
// kind are filled in; parseEvent has checked them.
type event struct {
	kind    eventKind
	version int32         // hello
	stage   Stage         // fatal, failed
	errno   syscall.Errno // fatal, failed
	exit    Exit          // exited
	ended   uint32        // exited, of a detached exec: see exitTime
}

// errnoMax is the highest number that a system call can return as an error.
const errnoMax = 4095

// parseEvent reads one message that untrusted code may have written.
func parseEvent(b []byte) (event, error) {
	if len(b) != eventSize {
		return event{}, fmt.Errorf("event of %d bytes, want %d", len(b), eventSize)
	}
	word := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	long := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }

	e := event{kind: eventKind(word(0))}
	value := int32(word(8))
	if refused := RefusedCalls(word(12)); refused&^allRefused != 0 || refused != 0 && e.kind != eventExited {
		return event{}, fmt.Errorf("event %d with refused calls %#x", e.kind, refused)
	}
	switch e.kind {
	case eventTerminal, eventAttached, eventDrained, eventWithheld:
	case eventHello:
		e.version = value
	case eventFatal, eventFailed:
		if value <= 0 || value > errnoMax {
			return event{}, fmt.Errorf("event %d with errno %d", e.kind, value)
		}
		e.stage, e.errno = Stage(word(4)), syscall.Errno(value)
	case eventExited:
		status := syscall.WaitStatus(uint32(value))
		if !status.Exited() && !status.Signaled() {
			return event{}, fmt.Errorf("event of an exit with wait status %#x", uint32(value))
		}
		e.exit = Exit{
			Status:     status,
			UserTime:   microseconds(long(16)),
			SystemTime: microseconds(long(24)),
			MaxRSS:     bounded(long(32)) << 10,
			Refused:    RefusedCalls(word(12)),
		}
		e.ended = word(4)
	default:
		return event{}, fmt.Errorf("event of unknown kind %d", e.kind)
	}
	return e, nil
}

// exitTime is the time that an exit tells: the low half of a number of milliseconds
// since the host's boot, so that up to 49 days later it is known which. Zero is no
// time.
func exitTime(told uint32, now time.Time, sinceBoot time.Duration) time.Time {
	if told == 0 {
		return time.Time{}
	}
	ago := uint32(sinceBoot.Milliseconds()) - told
	return now.Add(-time.Duration(ago) * time.Millisecond)
}

// parseList reads the answer to a request for the list.
func parseList(b []byte) ([]ExecID, error) {
	if len(b) < eventSize || (len(b)-eventSize)%idSize != 0 {
		return nil, fmt.Errorf("list of %d bytes", len(b))
	}
	ids := b[eventSize:]
	kind, count := binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[8:])
	if eventKind(kind) != eventList || int64(count) != int64(len(ids)/idSize) || count > maxDetached {
		return nil, fmt.Errorf("event %d of %d entries in place of a list of %d", kind, count, len(ids)/idSize)
	}
	list := make([]ExecID, count)
	for i := range list {
		copy(list[i][:], ids[i*idSize:])
	}
	return list, nil
}

// bounded keeps a number of the agent's so small that no later sum or product overflows.
func bounded(n uint64) int64 { return int64(min(n, 1<<50)) }

func microseconds(n uint64) time.Duration {
	return time.Duration(bounded(n)) * time.Microsecond
}
