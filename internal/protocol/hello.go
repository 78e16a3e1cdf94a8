package protocol

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

// Protocol is the version of this protocol. A launcher and its clients have the same
// version: they come as one program, or an embedder's module version tells which launcher
// belongs to it. A change that an older launcher would ignore needs a new version. A launcher before version 4 would make
// sandboxes with the host's programs in place of those of an image. One before version 5 would remove a later sandbox of
// a name. A client before version 6 would apply the rename of a directory, and the sandbox would lose the content. A launcher
// before version 7 would not end a command whose client has given up, and a client before version 7 would not
// understand the files with the output of detached commands. Version 8 has another form of requests and answers.
const Protocol = 8

// MaxHello bounds a Hello, in bytes.
const MaxHello = 4 << 10

// Hello is the first frame on a trunk, in both directions at once. Nobody waits
// for it before going on.
type Hello struct {
	Protocol int `json:"protocol"`
	// Refused says why the launcher serves nothing to this client.
	Refused string `json:"refused,omitempty"`
}

// Encode is the frame's body.
func (h Hello) Encode() []byte {
	body, err := json.Marshal(h)
	if err != nil {
		panic(err) // there is nothing in it that could
	}
	return body
}

// checkHello checks the launcher's first message.
func checkHello(body []byte) error {
	var h Hello
	if err := json.Unmarshal(body, &h); err != nil {
		return fmt.Errorf("%w: the other end is no launcher: %w", fault.ErrUnavailable, err)
	}
	if h.Refused != "" {
		return fmt.Errorf("%w: %s", fault.ErrRefused, strings.TrimPrefix(h.Refused, fault.ErrRefused.Error()+": "))
	}
	if h.Protocol != Protocol {
		return fmt.Errorf("%w: %s", fault.ErrUnavailable, mismatch(h.Protocol))
	}
	return nil
}

// mismatch names the way out if a launcher does not speak the client's version of the
// protocol.
func mismatch(launcher int) string {
	what := "is older than"
	if launcher > Protocol {
		what = "is newer than"
	}
	return fmt.Sprintf("the launcher %s its client, protocol %d and %d: run both from the same version, and restart the launcher",
		what, launcher, Protocol)
}
