package link

import (
	"encoding/binary"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// Bounds of questions.
const (
	// MaxQuestions is how many questions of a box can be open.
	MaxQuestions = protocol.MaxQuestions
	// MaxMethod and MaxPath are the longest method and path of a question, in bytes.
	MaxMethod = 32
	MaxPath   = 1 << 10
)

// A question fits a notice: JSON can need six bytes for one.
const _ = uint(protocol.MaxNotice - 6*(MaxName+MaxMethod+MaxPath) - 256)

// AllowedByEmbedder stands in an event in the place of the rule.
const AllowedByEmbedder = "allowed by the embedder"

// A Question asks the embedder about a connection, or about a request of plain HTTP.
type Question struct {
	Name string `json:"name"`
	Port uint16 `json:"port"`
	// Method and Path are those of a request. They are empty for a connection. The path has no query.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
}

// IsValid says whether the texts have no unusual characters, and are within their bounds.
func (q Question) IsValid() bool {
	if (q.Method == "") != (q.Path == "") {
		return false
	}
	isRequest := isPrintable(q.Method) && len(q.Method) <= MaxMethod && isPrintable(q.Path) && len(q.Path) <= MaxPath
	return IsName(q.Name) && q.Port != 0 && isRequest
}

// appendTo appends the form of a report: the port, the name and the method with their lengths, and the path.
func (q Question) appendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, q.Port)
	for _, text := range []string{q.Name, q.Method} {
		b = append(append(b, byte(len(text))), text...)
	}
	return append(b, q.Path...)
}

func parseQuestion(b []byte) (q Question, ok bool) {
	if len(b) < 2 {
		return q, false
	}
	q.Port, b = binary.BigEndian.Uint16(b), b[2:]
	for _, text := range []*string{&q.Name, &q.Method} {
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			return q, false
		}
		*text, b = string(b[1:1+int(b[0])]), b[1+int(b[0]):]
	}
	q.Path = string(b)
	return q, true
}

// An Answer answers one question of the worker.
type Answer struct {
	// ID is the worker's number of the question.
	ID      uint64 `json:"id"`
	Allowed bool   `json:"allowed"`
	// Reason is why the question is not allowed.
	Reason string `json:"reason,omitempty"`
}
