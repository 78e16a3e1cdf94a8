package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An Op is an operation of a launcher. The first frame of a call has the word of the operation, a newline, and a request
// of type Q in JSON. Each frame that comes back is an [Answer] of type A. internal/launcher/server has a handler and a
// permission for each operation.
type Op[Q, A any] struct {
	word string
	// files is the most descriptors that come beside an answer.
	files int
}

// String returns the word of the operation.
func (o Op[Q, A]) String() string { return o.word }

// None is an empty request or an empty answer.
type None struct{}

// About is a request about one sandbox.
type About[Q any] struct {
	ID string `json:"id"`
	// Request is never nil: a server refuses a request without it.
	Request *Q `json:"request"`
}

// A SandboxOp is an operation on one sandbox.
type SandboxOp[Q, A any] = Op[About[Q], A]

// The operations of a launcher. A stream is an operation with several answers. A user has objects of the user alone, and
// root has those of all users.
var (
	// OpCreate takes the descriptors of its paths. The client confirms the answer with a Control.
	OpCreate = Op[CreateRequest, spec.Info]{word: "create"}
	OpList   = Op[None, []spec.Info]{word: "list"}
	// OpEvents is a stream. Its first answer is nil: the launcher listens.
	OpEvents = Op[None, *spec.Event]{word: "events"}
	// OpPool answers with the counts of the pool. It changes the bounds first if the request is not nil: only root may.
	OpPool           = Op[*spec.PoolConfig, spec.PoolStats]{word: "pool"}
	OpSnapshots      = Op[None, []string]{word: "snapshots"}
	OpRemoveSnapshot = Op[string, None]{word: "remove-snapshot"}
	OpBeginning      = Op[string, Beginning]{word: "beginning"}

	// OpImagePull gets the digests of all layers, and answers with those that the user has to add. The pull lasts as long
	// as the call.
	OpImagePull = Op[[]string, []string]{word: "image-pull"}
	// OpImageLayer takes the descriptor of the layer.
	OpImageLayer = Op[ImageLayer, None]{word: "image-layer"}
	OpImageAdd   = Op[AddImage, spec.Image]{word: "image-add"}
	// OpImages answers with the last created image first, without layers and configs.
	OpImages = Op[None, []spec.Image]{word: "images"}
	OpImage  = Op[string, WireImage]{word: "image"}
	// OpImageRemove removes a name of an image, and the image with its last name. A sandbox or a snapshot that uses the
	// image is ErrBusy.
	OpImageRemove = Op[string, spec.RemovedImages]{word: "image-remove"}
	// OpImagePrune removes the images without a name that nothing uses, and layers that no image needs.
	OpImagePrune  = Op[None, spec.RemovedImages]{word: "image-prune"}
	OpImageVerify = Op[string, None]{word: "image-verify"}

	// OpRemove permits an id without a sandbox. It gets the time at which the sandbox was made. The zero time permits each
	// sandbox with the id.
	OpRemove = SandboxOp[time.Time, None]{word: "remove"}
	OpInfo   = SandboxOp[None, spec.Info]{word: "info"}
	// OpStart is a stream. It takes the descriptors of the command's files.
	OpStart = SandboxOp[StartRequest, CommandAnswer]{word: "start", files: startFiles}
	// OpAttach is a stream. It gets the id of a detached command.
	OpAttach = SandboxOp[string, CommandAnswer]{word: "attach", files: startFiles}
	// OpExecs answers with the commands that run, and with the detached commands whose Result no client has.
	OpExecs  = SandboxOp[None, []spec.ExecInfo]{word: "execs"}
	OpStats  = SandboxOp[None, spec.Stats]{word: "stats"}
	OpPause  = SandboxOp[None, None]{word: "pause"}
	OpResume = SandboxOp[None, None]{word: "resume"}
	// OpUpdate leaves a limit as it is if its field is zero.
	OpUpdate  = SandboxOp[spec.Limits, None]{word: "update"}
	OpNetwork = SandboxOp[NetworkRequest, spec.NetworkChange]{word: "network"}
	// OpNetworkLog is a stream, and nil is its end. The request true has the stream go on with new events.
	OpNetworkLog    = SandboxOp[bool, *spec.NetworkEvent]{word: "network-log"}
	OpNetworkDecide = SandboxOp[None, None]{word: "network-decide", files: 1}
	OpDial          = SandboxOp[Target, None]{word: "dial", files: 1}
	// OpUndo gets the number of transactions.
	OpUndo     = SandboxOp[int, None]{word: "undo"}
	OpDiscard  = SandboxOp[None, None]{word: "discard"}
	OpSnapshot = SandboxOp[string, None]{word: "snapshot"}
	// OpWorkspace takes the descriptors of its paths.
	OpWorkspace = SandboxOp[WorkspaceRequest, None]{word: "workspace"}
	// OpLayers is a stream.
	OpLayers  = SandboxOp[None, LayersAnswer]{word: "layers", files: channel.MaxFiles}
	OpApplied = SandboxOp[AppliedRequest, None]{word: "applied"}
	// OpVerify returns ErrDamaged if the sandbox has lost writes. The request true has all writes go to disk first: without
	// an error all content that was read before the call is as it was written. The request false asks for a known error.
	OpVerify = SandboxOp[bool, None]{word: "verify"}
	// OpUntie returns ErrBusy if an apply cannot begin.
	OpUntie = SandboxOp[Untie, None]{word: "untie"}
)

// An Answer is a frame from the launcher. A call ends with the answer that has an Error, or with the last Value.
type Answer[A any] struct {
	Error *fault.Wire `json:"error,omitempty"`
	Value A           `json:"value,omitempty,omitzero"`
}

// Ask is a call of an operation with one answer. The files go beside the request.
func Ask[Q, A any](ctx context.Context, c *Client, op Op[Q, A], q Q, files ...*os.File) (A, error) {
	ch, err := op.open(ctx, c, q, files...)
	if err != nil {
		var none A
		return none, err
	}
	defer ch.Close()
	a, _, err := op.receive(ctx, c, ch)
	return a, err
}

// AskAbout is Ask for an operation on one sandbox.
func AskAbout[Q, A any](ctx context.Context, c *Client, op SandboxOp[Q, A], id string, q Q, files ...*os.File) (A, error) {
	return Ask(ctx, c, op, About[Q]{id, &q}, files...)
}

// Tell is AskAbout for an operation with an empty answer.
func Tell[Q any](ctx context.Context, c *Client, op SandboxOp[Q, None], id string, q Q, files ...*os.File) error {
	_, err := AskAbout(ctx, c, op, id, q, files...)
	return err
}

// open begins a call: it sends the request. The caller must close the channel.
func (o Op[Q, A]) open(ctx context.Context, c *Client, q Q, files ...*os.File) (*channel.Conn, error) {
	text, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("encode for the launcher: %w", err)
	}
	body := append([]byte(o.word+"\n"), text...)
	if err := checkRequest(body); err != nil {
		return nil, err
	}
	return c.open(ctx, body, files, o.files)
}

// receive takes one answer of a call.
func (o Op[Q, A]) receive(ctx context.Context, c *Client, ch *channel.Conn) (value A, files []*os.File, err error) {
	body, files, err := ch.Receive(ctx, channel.MaxFrame)
	if errors.Is(err, io.EOF) {
		err = c.lostError()
	}
	if err != nil {
		return value, nil, err
	}
	var a Answer[A]
	if err = json.Unmarshal(body, &a); err != nil {
		err = fmt.Errorf("answer of the launcher: %w", err)
	} else if a.Error != nil {
		err = a.Error.Err()
	}
	if err != nil {
		descriptor.Close(files...)
		return value, nil, err
	}
	return a.Value, files, nil
}
