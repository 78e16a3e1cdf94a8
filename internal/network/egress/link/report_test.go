package link

import (
	"bytes"
	"strings"
	"testing"
)

func reports() []Report {
	return []Report{
		{Kind: KindAck, Sequence: 1<<63 + 7},
		{Kind: KindName, Number: 1, Name: strings.Repeat("a", MaxName)},
		{Kind: KindEvent, Number: 1<<32 - 1, Counts: Counts{1, 2, 3, 4, 5}, Line: strings.Repeat("ä", MaxLine/2)},
		{Kind: KindEvent, Number: 2},
		{Kind: KindQuestion, Number: 3, ID: 1<<63 + 1, Question: Question{Name: "a.example", Port: 443}},
		{Kind: KindQuestion, Number: 3, ID: 1, Question: Question{
			Name: strings.Repeat("a", MaxName), Port: 80, Method: strings.Repeat("M", MaxMethod), Path: "/" + strings.Repeat("p", MaxPath-1),
		}},
		{Kind: KindWithdrawal, Number: 3, ID: 1},
		{Kind: KindSettled, Number: 3, ID: 1<<63 + 1},
	}
}

func TestReportsComeAsTheyWent(t *testing.T) {
	for _, want := range reports() {
		if got, err := ParseReport(want.Bytes()); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
}

func TestWrongReportsAreRefused(t *testing.T) {
	for _, wrong := range []Report{
		{Kind: KindName, Number: 1},
		{Kind: KindName, Name: "a"},
		{Kind: KindName, Number: 1, Name: "a\nb"},
		{Kind: KindName, Number: 1, Name: "ä"},
		{Kind: KindName, Number: 1, Name: strings.Repeat("a", MaxName+1)},
		{Kind: KindEvent, Number: 1, Line: "a\nb"},
		{Kind: KindEvent, Number: 1, Line: strings.Repeat("a", MaxLine+1)},
		{Kind: 'x', Number: 1},
		{Kind: KindQuestion, Number: 1},
		{Kind: KindQuestion, Number: 1, Question: Question{Name: "a"}},
		{Kind: KindQuestion, Number: 1, Question: Question{Port: 1}},
		{Kind: KindQuestion, Question: Question{Name: "a", Port: 1}},
		{Kind: KindQuestion, Number: 1, Question: Question{Name: "a b", Port: 1}},
		{Kind: KindQuestion, Number: 1, Question: Question{Name: "a", Port: 1, Method: "GET"}},
		{Kind: KindQuestion, Number: 1, Question: Question{Name: "a", Port: 1, Path: "/"}},
		{Kind: KindQuestion, Number: 1, Question: Question{Name: "a", Port: 1, Method: "G\x1bT", Path: "/"}},
		{Kind: KindQuestion, Number: 1, Question: Question{Name: "a", Port: 1, Method: "GET", Path: "/\n"}},
		{Kind: KindQuestion, Number: 1, Question: Question{Name: "a", Port: 1, Method: "GET", Path: "/ä"}},
		{Kind: KindQuestion, Number: 1, Question: Question{Name: "a", Port: 1, Method: strings.Repeat("M", MaxMethod+1), Path: "/"}},
		{Kind: KindQuestion, Number: 1, Question: Question{Name: "a", Port: 1, Method: "GET", Path: strings.Repeat("/", MaxPath+1)}},
		{Kind: KindQuestion, Number: 1, Question: Question{Name: strings.Repeat("a", MaxName+1), Port: 1}},
	} {
		if got, err := ParseReport(wrong.Bytes()); err == nil {
			t.Errorf("%+v is taken as %+v", wrong, got)
		}
	}
	for _, wrong := range []string{"", "a", "a\x00\x00\x00\x00\x00\x00\x00\x01x", "e\x00\x00\x00\x00\x00\x00\x00\x01", "n\x01\x00\x00\x00\x00\x00\x00\x01a",
		"s\x00\x00\x00\x00\x00\x00\x00\x01", "s\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01x",
	} {
		if got, err := ParseReport([]byte(wrong)); err == nil {
			t.Errorf("%q is taken as %+v", wrong, got)
		}
	}
}

func TestCountsDoNotOverflow(t *testing.T) {
	c := Counts{Sent: maxCount - 1, Requests: 1}
	c.Add(Counts{Sent: 2, Received: ^uint64(0), Requests: 2})
	if want := (Counts{Sent: maxCount, Received: maxCount, Requests: 3}); c != want {
		t.Errorf("%+v; want %+v", c, want)
	}
	if sum := int64(c.Sent) + int64(c.Received); sum <= 0 {
		t.Errorf("the sum is %d", sum)
	}
}

func FuzzParseReport(f *testing.F) {
	for _, r := range reports() {
		f.Add(r.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseReport(b)
		if err == nil && !bytes.Equal(r.Bytes(), b) {
			t.Errorf("%q is taken as %+v", b, r)
		}
	})
}
