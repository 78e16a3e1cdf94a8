package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A NetworkQuestion asks a client about a connection of a sandbox, or about a request of plain HTTP. The sandbox chooses all
// texts. They have visible ASCII characters only.
type NetworkQuestion struct {
	Name string `json:"name"`
	Port uint16 `json:"port"`
	// Method and Path are those of a request. They are empty for a connection. The path has no query.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
}

// A Notice goes to a decider: a question, or its end if Question is nil.
type Notice struct {
	Number   uint64           `json:"number"`
	Question *NetworkQuestion `json:"question,omitempty"`
}

// A Reply comes from a decider. The first one has the number 0, and asks for the notices: no process that only
// hands the socket on reads one by accident.
type Reply struct {
	Number  uint64 `json:"number"`
	Allowed bool   `json:"allowed"`
}

// A Decider decides about connections and requests of one sandbox to names that no rule covers. While there
// is one, all names resolve that no rule denies. The caller must capture all ports. The check of the server's
// address stays.
type Decider struct {
	key     string
	channel *channel.Conn
	// cause tells why the connection has ended; nil: the reason is not known.
	cause func(context.Context) error
}

// NewDecider is the decider of a sandbox at a connection with the parent.
func NewDecider(key string, conn *channel.Conn, cause func(context.Context) error) *Decider {
	return &Decider{key, conn, cause}
}

// Hand gives the decider up. The socket is for [TakeDecider], also in another process without rights.
func (d *Decider) Hand() (*os.File, error) {
	fd := -1
	err := d.channel.Control(func(from uintptr) { fd = int(from) })
	if err == nil {
		fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err = errors.Join(err, d.channel.Close()); err != nil {
		return nil, fmt.Errorf("hand a decider on: %w", err)
	}
	return os.NewFile(uintptr(fd), "decider"), nil
}

// TakeDecider takes a decider over. The sandbox of the key has it.
func TakeDecider(socket *os.File, key string) (*Decider, error) {
	fd, err := descriptor.Duplicate(socket)
	if err = errors.Join(err, socket.Close()); err != nil {
		return nil, fmt.Errorf("take a decider: %w", err)
	}
	conn, err := channel.New(fd, 0)
	if err != nil {
		return nil, fmt.Errorf("take a decider: %w", err)
	}
	return NewDecider(key, conn, nil), nil
}

// Close ends the decider: the connections that wait are refused. It is safe to call twice.
func (d *Decider) Close() error { return d.channel.Close() }

// Bounds of a decider.
const (
	// MaxQuestions is how many questions of a sandbox can be open.
	MaxQuestions = 64
	// MaxNotice is the longest notice, in bytes.
	MaxNotice = 8 << 10
)

// Decide calls allow for each question, in a goroutine of its own. The result true allows this one connection or
// request. The context of a call ends with the question: after 30 seconds, or when a change of the rules ends the
// connection. The connection is then refused. At most 64 calls run at a time. While 64 calls run, other questions are
// refused, so a call should return soon after its context ends.
//
// Decide returns when ctx ends, when the sandbox is dismissed, or when its rules come without Box.Ask. The
// error is never nil. All calls have returned by then, and the decider is closed.
func (d *Decider) Decide(ctx context.Context, allow func(context.Context, NetworkQuestion) bool) error {
	defer d.channel.Close()
	calls, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	defer d.channel.HangUp() // the connections are refused before the calls return
	ends := &callEnds{cancel: map[uint64]context.CancelFunc{}}
	slots := make(chan struct{}, MaxQuestions)
	if err := d.begin(ctx); err != nil {
		return err
	}
	for {
		body, files, err := d.channel.Receive(ctx, MaxNotice)
		descriptor.Close(files...)
		if err != nil {
			return d.because(ctx, err)
		}
		var n Notice
		if err := json.Unmarshal(body, &n); err != nil {
			return fmt.Errorf("decide for sandbox %s: a notice: %w", d.key, err)
		}
		if n.Question == nil {
			ends.end(n.Number)
			continue
		}
		q := *n.Question
		select {
		case slots <- struct{}{}:
		default: // calls go on after the ends of their questions
			d.reply(calls, Reply{Number: n.Number})
			continue
		}
		call := ends.begin(calls, n.Number)
		running.Go(func() {
			allowed := allow(call, q)
			ends.end(n.Number)
			<-slots // before the reply, after which the next question can come
			d.reply(calls, Reply{Number: n.Number, Allowed: allowed})
		})
	}
}

// reply sends a reply. After an error the next Receive has one, too.
func (d *Decider) reply(ctx context.Context, r Reply) {
	if body, err := json.Marshal(r); err == nil {
		_ = d.channel.Send(ctx, body) // as above
	}
}

// begin asks for the questions.
func (d *Decider) begin(ctx context.Context) error {
	body, err := json.Marshal(Reply{})
	if err == nil {
		err = d.channel.Send(ctx, body)
	}
	if err != nil {
		return d.because(ctx, err)
	}
	return nil
}

// errEnded is the end of a decider without a known cause.
var errEnded = errors.New("the sandbox asks no more: its network was set without Ask, the sandbox was removed, or the processes of the network have ended")

// because is the error of Decide after an error of the channel. A decider that was taken over knows no cause.
func (d *Decider) because(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, io.EOF) {
		err = errEnded
		if d.cause != nil {
			if cause := d.cause(ctx); cause != nil {
				err = cause
			}
		}
	}
	return fmt.Errorf("decide for sandbox %s: %w", d.key, err)
}

// callEnds end the contexts of calls.
type callEnds struct {
	mu     sync.Mutex
	cancel map[uint64]context.CancelFunc
}

func (c *callEnds) begin(ctx context.Context, number uint64) context.Context {
	call, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel[number] = cancel
	return call
}

func (c *callEnds) end(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel, ok := c.cancel[number]; ok {
		delete(c.cancel, number)
		cancel()
	}
}
