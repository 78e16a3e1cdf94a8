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
	protocolVersion = 1
	agentID         = 65535
	maxPayload      = 8 << 20
	maxGroups       = 256
	maxRlimits      = 16

	requestSize = 20
	eventSize   = 40
)

type requestKind uint32

const (
	requestExec   requestKind = 1
	requestSignal requestKind = 2
)

type eventKind uint32

const (
	eventHello    eventKind = 1
	eventFatal    eventKind = 2
	eventFailed   eventKind = 3
	eventTerminal eventKind = 4
	eventExited   eventKind = 5
)

// request is what the host asks for.
type request struct {
	kind    requestKind
	stdio   uint32 // exec: bit n is set where descriptor n is passed
	payload int    // exec: its size
	signal  syscall.Signal
	group   bool // signal: the process group, not only the process
}

func (r request) encode() []byte {
	b := make([]byte, 0, requestSize)
	b = binary.NativeEndian.AppendUint32(b, uint32(r.kind))
	b = binary.NativeEndian.AppendUint32(b, r.stdio)
	b = binary.NativeEndian.AppendUint32(b, uint32(r.payload))
	b = binary.NativeEndian.AppendUint32(b, uint32(r.signal))
	group := uint32(0)
	if r.group {
		group = 1
	}
	return binary.NativeEndian.AppendUint32(b, group)
}

// event is what the agent, or a child of its, reports. Only what its kind says
// is filled in; parseEvent has checked it.
type event struct {
	kind    eventKind
	version int32         // hello
	stage   Stage         // fatal, failed
	errno   syscall.Errno // fatal, failed
	exit    Exit          // exited
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
	if word(12) != 0 {
		return event{}, fmt.Errorf("event %d with its reserved field set", e.kind)
	}
	switch e.kind {
	case eventTerminal:
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
		}
	default:
		return event{}, fmt.Errorf("event of unknown kind %d", e.kind)
	}
	return e, nil
}

// bounded keeps a number of the agent's within what no later sum or product
// overflows.
func bounded(n uint64) int64 { return int64(min(n, 1<<50)) }

func microseconds(n uint64) time.Duration {
	return time.Duration(bounded(n)) * time.Microsecond
}
