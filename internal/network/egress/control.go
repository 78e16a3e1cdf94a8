package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
)

// op is the kind of a request.
type op string

const (
	opAdmit   op = "admit"
	opChange  op = "change"
	opSuspend op = "suspend"
	// opWithhold is opSuspend, and marks the box.
	opWithhold op = "withhold"
	opDismiss  op = "dismiss"
	opHas      op = "has"
	opCounts   op = "counts"
	// opDecide makes the client the decider of a box. After the answer, notices and replies follow.
	opDecide op = "decide"
)

// A request asks the parent for one thing. A connection has one request and one answer, unless the client
// decides.
type request struct {
	Op    op          `json:"op"`
	Key   string      `json:"key"`
	Box   *Box        `json:"box,omitempty"`
	Roles []link.Role `json:"roles,omitempty"`
}

// An answer of the parent.
type answer struct {
	Error     string `json:"error,omitempty"`
	IsUnknown bool   `json:"is_unknown,omitempty"`
	Counts    Counts `json:"counts"`
	IsServed  bool   `json:"is_served,omitempty"`
	// IsWithheld is an answer to opHas.
	IsWithheld bool `json:"is_withheld,omitempty"`
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 64 << 10

// errNoAnswer means that a parent closes connections without an answer. It may have the sandbox.
var errNoAnswer = errors.New("the process of the proxied network does not answer; try again")

// callParent calls the parent, if there is one. A parent that was killed during the call is known by the second call.
func (e Egress) callParent(ctx context.Context, r request) (answer, error) {
	for range 3 {
		channel, err := e.connect()
		if isNoParent(err) {
			return answer{}, ErrUnknown
		}
		if err != nil {
			return answer{}, err
		}
		a, err := call(ctx, channel, r)
		channel.Close()
		if !isNoParent(err) {
			return a, err
		}
	}
	return answer{}, errNoAnswer
}

// isNoParent says whether an error means that there is no parent.
func isNoParent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) ||
		errors.Is(err, unix.EPIPE) || errors.Is(err, io.EOF)
}

func call(ctx context.Context, channel *channel.Conn, r request, files ...*os.File) (a answer, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	if err := channel.Send(ctx, body, files...); err != nil {
		return a, err
	}
	body, received, err := channel.Receive(ctx, maxAnswer)
	descriptor.Close(received...)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("an answer of the proxied network: %w", err)
	}
	switch {
	case a.IsUnknown:
		return a, ErrUnknown
	case a.Error != "":
		return a, errors.New(a.Error)
	}
	return a, nil
}

// connect connects to the parent.
func (e Egress) connect() (*channel.Conn, error) {
	var conn *net.UnixConn
	err := descriptor.ShortPath(e.socket(), func(short string) (err error) {
		conn, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, err
	}
	return channel.OfConn(conn, 0)
}
