package nameserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

var errServer = errors.New("the server does not answer")

// A server answers with its header and no record, and counts the queries.
type server struct {
	header  dnsmessage.Header
	err     error
	queries int
}

func (s *server) exchange(_ context.Context, _ netip.AddrPort, query []byte) ([]byte, error) {
	s.queries++
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil || s.err != nil {
		return nil, errors.Join(err, s.err)
	}
	id := m.ID
	m.Header = s.header
	m.ID, m.Response = id, true
	return m.Pack()
}

// lookUp asks with a query of its own id, and checks the answer.
func lookUp(t *testing.T, a *Answers, id uint16, name string) error {
	t.Helper()
	asked := query(t, name)
	asked[0], asked[1] = byte(id>>8), byte(id)
	message, err := a.Ask(t.Context(), netip.MustParseAddrPort("192.0.2.1:53"), asked)
	if err != nil {
		return err
	}
	var m dnsmessage.Message
	if err := m.Unpack(message); err != nil || m.ID != id || len(m.Questions) != 1 || m.Questions[0].Name.String() != name {
		t.Fatalf("the answer to %d %s: %+v, %v", id, name, m, err)
	}
	message[len(message)-1]++ // the caller may change its copy
	return nil
}

func TestAnAnswerServesForASecond(t *testing.T) {
	for name, test := range map[string]struct {
		server server
		isKept bool
	}{
		"an address":      {server{}, true},
		"no such name":    {server{header: dnsmessage.Header{RCode: dnsmessage.RCodeNameError}}, true},
		"a failed server": {server{header: dnsmessage.Header{RCode: dnsmessage.RCodeServerFailure}}, false},
		"a part":          {server{header: dnsmessage.Header{Truncated: true}}, false},
		"no answer":       {server{err: errServer}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &test.server
			a, start := NewAnswers(s.exchange), time.Now()
			const count = 100
			for i := range uint16(count) {
				if err := lookUp(t, a, i, "one.example."); !errors.Is(err, s.err) {
					t.Fatal(err)
				}
			}
			most := int(time.Since(start)/answerLife) + 1
			if test.isKept && s.queries > most || !test.isKept && s.queries != count {
				t.Errorf("%d queries for %d lookups", s.queries, count)
			}
			if !test.isKept {
				return
			}
			time.Sleep(answerLife + 10*time.Millisecond)
			before := s.queries
			if err := lookUp(t, a, 1, "one.example."); err != nil || s.queries != before+1 {
				t.Errorf("%d queries after a second, %v", s.queries-before, err)
			}
		})
	}
}

func TestFewAnswersAreKept(t *testing.T) {
	s := &server{}
	a := NewAnswers(s.exchange)
	for round := range 2 {
		for i := range 2 * maxAnswers {
			if err := lookUp(t, a, uint16(i), fmt.Sprintf("n%d-%d.example.", round, i)); err != nil {
				t.Fatal(err)
			}
		}
		if len(a.kept) != maxAnswers {
			t.Errorf("%d answers are kept, want %d", len(a.kept), maxAnswers)
		}
		time.Sleep(answerLife + 10*time.Millisecond)
	}
	for q := range a.kept { // expired ones have made room
		if !strings.Contains(q.text, "n1-") {
			t.Fatalf("an answer of the first round is kept: %q", q.text)
		}
	}
}
