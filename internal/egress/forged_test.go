package egress

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/egress/names"
)

// The next worker refuses a list with a repeated name, and then serves no sandbox.
func TestAHostileWorkerCannotRepeatAName(t *testing.T) {
	p := newHostileParent(t)
	var says []byte
	for _, name := range []string{"a.example", "b.example", "a.example", "c.example"} {
		says = append(says, frame(link.Report{Kind: link.KindName, Number: 1, Name: name}.Bytes())...)
	}
	hear(t, p, says)
	want := []string{"a.example", "b.example", "c.example"}
	r := p.keys["a"].record
	if !slices.Equal(r.names, want) {
		t.Errorf("the names are %q", r.names)
	}
	// A file with a repeated name counts up to the repetition.
	if err := appendTo(r.path(namesName), "b.example\nd.example\n", r.writtenSize); err != nil {
		t.Fatal(err)
	}
	again, err := openRecord(r.dir)
	if err != nil || !slices.Equal(again.names, want) {
		t.Fatalf("%q, %v", again.names, err)
	}
	if _, err := names.New(again.names, nil); err != nil {
		t.Error(err)
	}
}

// JSON can have control characters in its strings that its text does not have.
func TestAHostileWorkerCannotSendControlCharactersToATerminal(t *testing.T) {
	p := newHostileParent(t)
	const line = `{"name":"a\u001b[2J","address":"\u009b","rule":"\u202e","decision":"denied\n","reason":"is ä\r"}`
	hear(t, p, frame(link.Report{Kind: link.KindEvent, Number: 1, Line: line}.Bytes()))
	count := 0
	for e, err := range p.egress.Events(t.Context(), "a", false) {
		if err != nil {
			t.Fatal(err)
		}
		count++
		text := strings.Join([]string{e.Name, e.Address, e.Rule, e.Decision, e.Reason}, " ")
		if want := "a\ufffd[2J \ufffd \ufffd denied\ufffd is ä\ufffd"; text != want {
			t.Errorf("the event has %q; want %q", text, want)
		}
	}
	if count != 1 {
		t.Errorf("%d events", count)
	}
}
