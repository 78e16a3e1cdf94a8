package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Kind is the kind of a report.
type Kind byte

// The kinds.
const (
	KindAck   Kind = 'a' // the orders up to Sequence are in force
	KindName  Kind = 'n' // the box has one more name
	KindEvent Kind = 'e' // the box has used Counts more, and its log has one more Line
	// KindQuestion asks the embedder about a connection or request of the box.
	KindQuestion Kind = 'q'
	// KindWithdrawal says that the connection of the question ID has ended. The parent still answers the question.
	KindWithdrawal Kind = 'w'
	// KindSettled says that the box has reported the counts for which the order Settle with the number ID has asked.
	KindSettled Kind = 's'
)

const (
	// headSize is the kind and a number: Sequence, or the number of the box.
	headSize   = 1 + 8
	countsSize = 5 * 8
	idSize     = 8
)

// A Report is a message from the worker.
type Report struct {
	Kind     Kind
	Sequence uint64
	Number   uint32
	Name     string
	Counts   Counts
	// Line may be empty.
	Line string
	// ID is the worker's number of a question, or the number of an order Settle.
	ID       uint64
	Question Question
}

// Bytes is the form on the socket.
func (r Report) Bytes() []byte {
	b := make([]byte, 0, headSize+countsSize+len(r.Name)+len(r.Line))
	b = append(b, byte(r.Kind))
	if r.Kind == KindAck {
		return binary.BigEndian.AppendUint64(b, r.Sequence)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(r.Number))
	switch r.Kind {
	case KindName:
		return append(b, r.Name...)
	case KindQuestion:
		return r.Question.appendTo(binary.BigEndian.AppendUint64(b, r.ID))
	case KindWithdrawal, KindSettled:
		return binary.BigEndian.AppendUint64(b, r.ID)
	}
	for _, n := range r.Counts.all() {
		b = binary.BigEndian.AppendUint64(b, *n)
	}
	return append(b, r.Line...)
}

// ParseReport reads the form of [Report.Bytes]. Its input is hostile. Names and lines have no control
// characters; ParseReport knows no more about their content.
func ParseReport(b []byte) (Report, error) {
	if len(b) < headSize || len(b) > MaxReport {
		return Report{}, fmt.Errorf("a report of %d bytes", len(b))
	}
	r := Report{Kind: Kind(b[0])}
	number, rest := binary.BigEndian.Uint64(b[1:]), b[headSize:]
	if r.Kind == KindAck {
		r.Sequence = number
		return r, check(len(rest) == 0, "an acknowledgement is too long")
	}
	r.Number = uint32(number)
	if uint64(r.Number) != number || number == 0 {
		return Report{}, fmt.Errorf("a report about box %d", number)
	}
	switch r.Kind {
	case KindName:
		r.Name = string(rest)
		return r, check(IsName(r.Name), "a report has no valid name")
	case KindEvent:
		if len(rest) < countsSize {
			return Report{}, errors.New("a report has no counts")
		}
		for i, n := range r.Counts.all() {
			*n = binary.BigEndian.Uint64(rest[8*i:])
		}
		r.Line = string(rest[countsSize:])
		return r, check(len(r.Line) <= MaxLine && !hasControl(r.Line), "a report has no valid line")
	case KindQuestion, KindWithdrawal, KindSettled:
		if len(rest) < idSize {
			return Report{}, errors.New("a report has no number of a question or of an order")
		}
		r.ID, rest = binary.BigEndian.Uint64(rest), rest[idSize:]
		if r.Kind != KindQuestion {
			return r, check(len(rest) == 0, "a report about a number is too long")
		}
		var ok bool
		r.Question, ok = parseQuestion(rest)
		return r, check(ok && r.Question.IsValid(), "a report has no valid question")
	}
	return Report{}, fmt.Errorf("a report of kind %q", byte(r.Kind))
}

func check(ok bool, wrong string) error {
	if ok {
		return nil
	}
	return errors.New(wrong)
}

// IsName says whether a text can be a name of a box.
func IsName(text string) bool { return text != "" && len(text) <= MaxName && isPrintable(text) }

// isPrintable says whether all characters are of ASCII, and visible.
func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

func hasControl(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f })
}
