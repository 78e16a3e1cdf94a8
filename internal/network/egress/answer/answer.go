// Package answer answers the DNS queries of one sandbox from its rules and its names. The package
// does no I/O and sends no query, so a query carries nothing out of the sandbox. Its input is hostile.
//
// An allowed name has the synthetic addresses of package names, and no other record: no hints or
// keys of encrypted ClientHellos, no text, no other hosts. Other names do not exist. An answer is
// never longer than 512 bytes, so it fits each transport and is never truncated.
package answer

import (
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/names"
)

// The time for which clients can keep an answer, in seconds. An address never changes, and each
// connection is judged again. A name that does not exist can be allowed soon.
const (
	addressTTL  = 60
	negativeTTL = 5
)

// payload is the longest message over UDP that the sandbox's clients may send, in bytes.
const payload = 1232

// A Decision says how the rules took part in an answer.
type Decision string

// The decisions.
const (
	None    Decision = ""        // no rule was asked: the query is malformed, of no name, or about the sandbox itself
	Allowed Decision = "allowed" // the name exists
	Denied  Decision = "denied"  // the name does not exist
	Failed  Decision = "failed"  // the name is allowed, and has no address: see Event.Err
)

// An Event describes one query and its answer. It has printable ASCII characters only.
type Event struct {
	Name     string // in lower case, without a trailing dot; unusual bytes as \DDD
	Type     dnsmessage.Type
	Code     dnsmessage.RCode
	Decision Decision
	Err      error // of a Failed query: names.ErrFull, or the reason for which the name is not recorded
}

// Answer returns the answer to a query over UDP or TCP, and an event. A message that deserves no
// answer gets nil. The function allowed gets a name in lower case without a trailing dot. It says
// whether the sandbox can reach the name on any port. The table gets a name only after that.
func Answer(query []byte, allowed func(name string) bool, table *names.Table) ([]byte, Event) {
	q, code, ok := parse(query)
	if !ok {
		return nil, Event{}
	}
	if code != dnsmessage.RCodeSuccess {
		return q.reply(code, nil), Event{Code: code}
	}
	e := Event{Name: printable(q.name()), Type: q.question.Type}
	if q.question.Class != dnsmessage.ClassINET || isTransfer(q.question.Type) {
		e.Code = dnsmessage.RCodeRefused
		return q.reply(e.Code, nil), e
	}
	var body dnsmessage.ResourceBody
	switch name := q.name(); {
	case q.question.Type == dnsmessage.TypePTR:
		body, e.Code = pointer(name, table)
	case name == "": // the root has no record that a sandbox needs
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		body = address(q.question.Type, loopback())
	case !isHost(name) || !allowed(name):
		e.Code, e.Decision = dnsmessage.RCodeNameError, Denied
	default:
		body, e.Err = synthetic(name, q.question.Type, table)
		e.Decision = Allowed
		if e.Err != nil {
			e.Code, e.Decision = dnsmessage.RCodeServerFailure, Failed
		}
	}
	return q.reply(e.Code, body), e
}

// synthetic takes an address of the table only for a query that needs one.
func synthetic(name string, t dnsmessage.Type, table *names.Table) (dnsmessage.ResourceBody, error) {
	if t != dnsmessage.TypeA && t != dnsmessage.TypeAAAA {
		return nil, nil
	}
	pair, err := table.Of(name)
	if err != nil {
		return nil, err
	}
	return address(t, pair), nil
}

// loopback has the addresses of localhost (RFC 6761, section 6.3).
func loopback() names.Pair {
	return names.Pair{V4: netip.AddrFrom4([4]byte{127, 0, 0, 1}), V6: netip.IPv6Loopback()}
}

func address(t dnsmessage.Type, pair names.Pair) dnsmessage.ResourceBody {
	switch t {
	case dnsmessage.TypeA:
		return &dnsmessage.AResource{A: pair.V4.As4()}
	case dnsmessage.TypeAAAA:
		return &dnsmessage.AAAAResource{AAAA: pair.V6.As16()}
	}
	return nil
}

// pointer returns the name of a synthetic address.
func pointer(name string, table *names.Table) (dnsmessage.ResourceBody, dnsmessage.RCode) {
	if a, ok := reverse(name); ok {
		if target, ok := table.Name(a); ok {
			if n, err := dnsmessage.NewName(target + "."); err == nil {
				return &dnsmessage.PTRResource{PTR: n}, dnsmessage.RCodeSuccess
			}
		}
	}
	return nil, dnsmessage.RCodeNameError
}

// isTransfer is true for the requests for a whole zone (RFC 5936, RFC 1995).
func isTransfer(t dnsmessage.Type) bool {
	const incremental = 251
	return t == dnsmessage.TypeAXFR || t == incremental
}

// A query is a message with one question.
type query struct {
	header   dnsmessage.Header
	question dnsmessage.Question       // of no name: the message has no readable question
	opt      dnsmessage.ResourceHeader // of no type: the message has none
}

func (q query) name() string {
	return strings.TrimSuffix(lowerASCII(q.question.Name.String()), ".")
}

// parse reads a query. It is not ok for a message that must not be answered. The code of another
// malformed or unusual message says how to answer it.
func parse(message []byte) (q query, code dnsmessage.RCode, ok bool) {
	var p dnsmessage.Parser
	var err error
	if q.header, err = p.Start(message); err != nil || q.header.Response {
		return q, 0, false
	}
	if q.header.OpCode != 0 {
		return q, dnsmessage.RCodeNotImplemented, true
	}
	question, err := p.Question()
	if err != nil {
		return q, dnsmessage.RCodeFormatError, true
	}
	if _, err := p.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return q, dnsmessage.RCodeFormatError, true
	}
	q.question = question
	if !q.parseRest(&p) {
		return q, dnsmessage.RCodeFormatError, true
	}
	if version := uint8(q.opt.TTL >> 16); version != 0 {
		const badVersion = 16
		return q, badVersion, true
	}
	return q, dnsmessage.RCodeSuccess, true
}

// parseRest reads the sections after the question. A query has at most additional records there, and one OPT
// record among them (RFC 6891, section 6.1.1).
func (q *query) parseRest(p *dnsmessage.Parser) bool {
	if _, err := p.AnswerHeader(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return false
	}
	if _, err := p.AuthorityHeader(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return false
	}
	for {
		h, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return true
		}
		if err != nil {
			return false
		}
		if h.Type == dnsmessage.TypeOPT {
			if q.opt.Type == dnsmessage.TypeOPT || h.Name.String() != "." {
				return false
			}
			q.opt = h
		}
		if p.SkipAdditional() != nil {
			return false
		}
	}
}

// reply makes the answer with at most one record. An answer without a record has an SOA record, so that
// clients keep it for a while (RFC 2308).
func (q query) reply(code dnsmessage.RCode, body dnsmessage.ResourceBody) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{
		ID: q.header.ID, Response: true, OpCode: q.header.OpCode, RecursionDesired: q.header.RecursionDesired,
		RecursionAvailable: true, CheckingDisabled: q.header.CheckingDisabled, RCode: code & 0xf,
	}}
	if q.question.Name.Length > 0 {
		m.Questions = []dnsmessage.Question{q.question}
	}
	h := dnsmessage.ResourceHeader{Name: q.question.Name, Class: dnsmessage.ClassINET, TTL: addressTTL}
	switch {
	case body != nil:
		m.Answers = []dnsmessage.Resource{{Header: h, Body: body}}
	case code == dnsmessage.RCodeSuccess || code == dnsmessage.RCodeNameError:
		m.Authorities = []dnsmessage.Resource{authority()}
	}
	if q.opt.Type == dnsmessage.TypeOPT {
		var opt dnsmessage.ResourceHeader
		if opt.SetEDNS0(payload, code, q.opt.DNSSECAllowed()) == nil { // it never fails
			m.Additionals = []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{}}}
		}
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return packed
}

func authority() dnsmessage.Resource {
	return dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("."), Class: dnsmessage.ClassINET, TTL: negativeTTL},
		Body: &dnsmessage.SOAResource{
			NS: dnsmessage.MustNewName("localhost."), MBox: dnsmessage.MustNewName("nobody.invalid."),
			Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, MinTTL: negativeTTL,
		},
	}
}
