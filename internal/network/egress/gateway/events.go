package gateway

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
)

const (
	// eventRate and eventBurst bound the events of a box, per second and at once. Other events are only
	// counted.
	eventRate  = 50
	eventBurst = 200
	// maxText bounds a rule and a reason of an event, in bytes.
	maxText = 600
)

// report reports an event with its counts.
func (b *box) report(e link.Event, c link.Counts) {
	r := link.Report{Kind: link.KindEvent, Number: b.number, Counts: c}
	if b.events.Allow() {
		r.Line = line(e)
	} else {
		r.Counts.Dropped++
	}
	_ = b.gateway.report(r) // without a parent the process ends
}

// line is the event as one line of JSON.
func line(e link.Event) string {
	e.Rule, e.Reason = shorten(e.Rule), shorten(e.Reason)
	text, err := json.Marshal(e)
	if err != nil || len(text) > link.MaxLine {
		e.Rule, e.Reason = "", ""
		text, _ = json.Marshal(e) // of plain fields: no error
	}
	return string(text)
}

func shorten(text string) string {
	if len(text) <= maxText {
		return text
	}
	for end := maxText; ; end-- {
		if utf8.RuneStart(text[end]) {
			return text[:end] + "…"
		}
	}
}
