package answer

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/names"
)

var long = strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("a", 61) // 255 bytes in a message

func allowed(name string) bool {
	return name == "pypi.org" || name == long || strings.HasSuffix(name, ".example.com")
}

func newTable(t testing.TB, known ...string) *names.Table {
	t.Helper()
	table, err := names.New(known, nil)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func message(name string, kind dnsmessage.Type, changes ...func(*dnsmessage.Message)) dnsmessage.Message {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: kind, Class: dnsmessage.ClassINET}},
	}
	for _, change := range changes {
		change(&m)
	}
	return m
}

func pack(t testing.TB, m dnsmessage.Message) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func exchange(t *testing.T, table *names.Table, m dnsmessage.Message) (dnsmessage.Message, Event) {
	t.Helper()
	b, e := Answer(pack(t, m), allowed, table)
	var got dnsmessage.Message
	if err := got.Unpack(b); err != nil {
		t.Fatalf("answer to %+v: %v", m, err)
	}
	if got.ID != m.ID || !got.Response || got.OpCode != m.OpCode || got.Truncated || len(b) > 512 {
		t.Errorf("answer to %+v: %d bytes, %+v", m, len(b), got.Header)
	}
	return got, e
}

// records are the answers in short.
func records(m dnsmessage.Message) string {
	var all []string
	for _, r := range m.Answers {
		switch b := r.Body.(type) {
		case *dnsmessage.AResource:
			all = append(all, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			all = append(all, netip.AddrFrom16(b.AAAA).String())
		case *dnsmessage.PTRResource:
			all = append(all, b.PTR.String())
		}
	}
	return strings.Join(all, " ")
}

func TestAnswers(t *testing.T) {
	const (
		success, missing, refused = dnsmessage.RCodeSuccess, dnsmessage.RCodeNameError, dnsmessage.RCodeRefused
		ptr, svcb, https, caa     = dnsmessage.TypePTR, dnsmessage.Type(64), dnsmessage.Type(65), dnsmessage.Type(257)
		ixfr                      = dnsmessage.Type(251)
	)
	six := func(digits string) string {
		return digits + strings.Repeat(".0", 12) + ".1.0.0.0.0.0.0.0.0.0.0.0.3.5.d.f.ip6.arpa"
	}
	for _, x := range []struct {
		name     string
		kind     dnsmessage.Type
		code     dnsmessage.RCode
		records  string
		decision Decision
	}{
		{"pypi.org", dnsmessage.TypeA, success, "198.18.1.0", Allowed},
		{"pypi.org", dnsmessage.TypeAAAA, success, "fd53:0:0:1::100", Allowed},
		{"PyPI.oRg", dnsmessage.TypeA, success, "198.18.1.0", Allowed},
		{"a.b.example.com", dnsmessage.TypeA, success, "198.18.1.1", Allowed},
		{long, dnsmessage.TypeAAAA, success, "fd53:0:0:1::102", Allowed},
		{"pypi.org", dnsmessage.TypeTXT, success, "", Allowed},
		{"new.example.com", dnsmessage.TypeTXT, success, "", Allowed},
		{"pypi.org", dnsmessage.TypeMX, success, "", Allowed},
		{"pypi.org", dnsmessage.TypeSRV, success, "", Allowed},
		{"pypi.org", dnsmessage.TypeNS, success, "", Allowed},
		{"pypi.org", dnsmessage.TypeCNAME, success, "", Allowed},
		{"pypi.org", dnsmessage.TypeALL, success, "", Allowed},
		{"pypi.org", https, success, "", Allowed},
		{"pypi.org", svcb, success, "", Allowed},
		{"pypi.org", caa, success, "", Allowed},
		{"pypi.org", dnsmessage.TypeAXFR, refused, "", None},
		{"pypi.org", ixfr, refused, "", None},
		{"evil.org", dnsmessage.TypeA, missing, "", Denied},
		{"evil.org", dnsmessage.TypeTXT, missing, "", Denied},
		{"secret.pypi.org", dnsmessage.TypeA, missing, "", Denied},
		{"org", dnsmessage.TypeNS, missing, "", Denied},
		{"s\x00.example.com", dnsmessage.TypeA, missing, "", Denied},
		{"caf\xe9.example.com", dnsmessage.TypeA, missing, "", Denied},
		{"a b.example.com", dnsmessage.TypeA, missing, "", Denied},
		{"pypi.org", dnsmessage.TypePTR, missing, "", None},
		{"", dnsmessage.TypeNS, success, "", None},
		{"localhost", dnsmessage.TypeA, success, "127.0.0.1", None},
		{"a.LOCALHOST", dnsmessage.TypeAAAA, success, "::1", None},
		{"localhost", dnsmessage.TypeTXT, success, "", None},
		{"0.1.18.198.in-addr.arpa", ptr, success, "pypi.org.", None},
		{"1.1.18.198.IN-ADDR.ARPA", ptr, success, "a.b.example.com.", None},
		{six("0.0.1.0"), ptr, success, "pypi.org.", None},
		{six("2.0.1.0"), ptr, success, long + ".", None},
		{"3.1.18.198.in-addr.arpa", ptr, missing, "", None},
		{"2.0.18.198.in-addr.arpa", ptr, missing, "", None},
		{"8.8.8.8.in-addr.arpa", ptr, missing, "", None},
		{"1.18.198.in-addr.arpa", ptr, missing, "", None},
		{"in-addr.arpa", ptr, missing, "", None},
		{"x" + six("0.0.1.0"), ptr, missing, "", None},
		{"0.0" + six("0.0.1.0")[3:], ptr, success, "pypi.org.", None},
		{"00" + six("0.0.1.0")[3:], ptr, missing, "", None},
		{"0.1.18.198.in-addr.arpa", dnsmessage.TypeA, missing, "", Denied},
	} {
		table := newTable(t, "pypi.org", "a.b.example.com", long)
		got, e := exchange(t, table, message(x.name, x.kind))
		if got.RCode != x.code || records(got) != x.records || e.Decision != x.decision {
			t.Errorf("%q %v: %v, %q, %q; want %v, %q, %q", x.name, x.kind, got.RCode, records(got), e.Decision, x.code, x.records, x.decision)
		}
		if !slices.Equal(got.Questions, message(x.name, x.kind).Questions) {
			t.Errorf("%q: the question is not echoed: %v", x.name, got.Questions)
		}
		if e.Type != x.kind || e.Code != x.code || e.Err != nil || strings.ContainsFunc(e.Name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("%q: event %+v", x.name, e)
		}
		if negative := x.records == "" && x.code != refused; negative != (len(got.Authorities) == 1) {
			t.Errorf("%q %v: authorities %v", x.name, x.kind, got.Authorities)
		}
		if _, ok := table.Name(netip.MustParseAddr("198.18.1.3")); ok {
			t.Errorf("%q %v took an address", x.name, x.kind)
		}
	}
}

func TestUnusualQueries(t *testing.T) {
	class := func(c dnsmessage.Class) func(*dnsmessage.Message) {
		return func(m *dnsmessage.Message) { m.Questions[0].Class = c }
	}
	operation := func(op dnsmessage.OpCode) func(*dnsmessage.Message) {
		return func(m *dnsmessage.Message) { m.OpCode = op }
	}
	record := dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("a."), Class: dnsmessage.ClassINET}, Body: &dnsmessage.AResource{},
	}
	const chaos, badVersion = 3, 16
	for name, x := range map[string]struct {
		change func(*dnsmessage.Message)
		code   dnsmessage.RCode
	}{
		"class chaos":   {class(chaos), dnsmessage.RCodeRefused},
		"class any":     {class(dnsmessage.ClassANY), dnsmessage.RCodeRefused},
		"notify":        {operation(4), dnsmessage.RCodeNotImplemented},
		"update":        {operation(5), dnsmessage.RCodeNotImplemented},
		"no question":   {func(m *dnsmessage.Message) { m.Questions = nil }, dnsmessage.RCodeFormatError},
		"two questions": {func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }, dnsmessage.RCodeFormatError},
		"an answer":     {func(m *dnsmessage.Message) { m.Answers = append(m.Answers, record) }, dnsmessage.RCodeFormatError},
		"an authority":  {func(m *dnsmessage.Message) { m.Authorities = append(m.Authorities, record) }, dnsmessage.RCodeFormatError},
		"an additional": {func(m *dnsmessage.Message) { m.Additionals = append(m.Additionals, record) }, dnsmessage.RCodeSuccess},
		"two OPTs":      {func(m *dnsmessage.Message) { withOPT(0)(m); withOPT(0)(m) }, dnsmessage.RCodeFormatError},
		"EDNS 1":        {withOPT(1 << 16), badVersion & 0xf},
	} {
		table := newTable(t)
		got, e := exchange(t, table, message("pypi.org", dnsmessage.TypeA, x.change))
		if got.RCode != x.code {
			t.Errorf("%s: %v, want %v", name, got.RCode, x.code)
		}
		if _, ok := table.Name(netip.MustParseAddr("198.18.1.0")); ok != (x.code == dnsmessage.RCodeSuccess && name != "EDNS 1") {
			t.Errorf("%s: address taken: %v; event %+v", name, ok, e)
		}
	}
	for name, b := range map[string][]byte{
		"nothing":    nil,
		"half":       make([]byte, 11),
		"a response": pack(t, message("pypi.org", dnsmessage.TypeA, func(m *dnsmessage.Message) { m.Response = true })),
	} {
		if got, e := Answer(b, allowed, newTable(t)); got != nil || e != (Event{}) {
			t.Errorf("%s: answer %x, event %+v", name, got, e)
		}
	}
}

// withOPT adds an OPT record (RFC 6891) that offers 4096 bytes and asks for signatures.
func withOPT(ttl uint32) func(*dnsmessage.Message) {
	return func(m *dnsmessage.Message) {
		const signatures = 1 << 15
		h := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("."), Type: dnsmessage.TypeOPT, Class: 4096, TTL: ttl | signatures}
		cookie := dnsmessage.Option{Code: 10, Data: make([]byte, 8)}
		m.Additionals = append(m.Additionals, dnsmessage.Resource{Header: h, Body: &dnsmessage.OPTResource{Options: []dnsmessage.Option{cookie}}})
	}
}

func TestEDNSIsAnswered(t *testing.T) {
	for ttl, want := range map[uint32]dnsmessage.RCode{0: dnsmessage.RCodeSuccess, 1 << 16: 16} {
		got, _ := exchange(t, newTable(t), message("pypi.org", dnsmessage.TypeA, withOPT(ttl)))
		if len(got.Additionals) != 1 {
			t.Fatalf("additionals %v", got.Additionals)
		}
		h := got.Additionals[0].Header
		if h.Type != dnsmessage.TypeOPT || h.Class != payload || h.DNSSECAllowed() != (ttl == 0) || h.ExtendedRCode(got.RCode) != want {
			t.Errorf("OPT record %+v, code %v; want %v", h, h.ExtendedRCode(got.RCode), want)
		}
	}
	if got, _ := exchange(t, newTable(t), message("pypi.org", dnsmessage.TypeA)); len(got.Additionals) != 0 {
		t.Errorf("a client without EDNS got %v", got.Additionals)
	}
}

func TestWithoutAnAddressTheServerFails(t *testing.T) {
	broken := errors.New("the parent is gone")
	table, err := names.New(nil, func(string) error { return broken })
	if err != nil {
		t.Fatal(err)
	}
	got, e := exchange(t, table, message("pypi.org", dnsmessage.TypeA))
	if got.RCode != dnsmessage.RCodeServerFailure || e.Decision != Failed || !errors.Is(e.Err, broken) {
		t.Errorf("%v, event %+v", got.RCode, e)
	}
}

func TestEventsArePrintable(t *testing.T) {
	for name, want := range map[string]string{"A\n\\\xff ~.B": `a\010\092\255\032~.b`, "Good_1.org": "good_1.org"} {
		if _, e := exchange(t, newTable(t), message(name, dnsmessage.TypeA)); e.Name != want {
			t.Errorf("%q is %q in the event, want %q", name, e.Name, want)
		}
	}
}

// serve answers a TCP socket and a UDP socket, and returns their addresses by network.
func serve(t *testing.T, table *names.Table) map[string]string {
	t.Helper()
	streams, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { streams.Close() })
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { packets.Close() })
	go func() {
		b := make([]byte, 4096)
		for {
			n, peer, err := packets.ReadFrom(b)
			if err != nil {
				return
			}
			answer, _ := Answer(b[:n], allowed, table)
			packets.WriteTo(answer, peer)
		}
	}()
	go func() {
		for {
			c, err := streams.Accept()
			if err != nil {
				return
			}
			length := make([]byte, 2)
			io.ReadFull(c, length)
			b := make([]byte, binary.BigEndian.Uint16(length))
			io.ReadFull(c, b)
			answer, _ := Answer(b, allowed, table)
			c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
			c.Close()
		}
	}()
	return map[string]string{"tcp": streams.Addr().String(), "udp": packets.LocalAddr().String()}
}

func TestAResolverUnderstandsTheAnswers(t *testing.T) {
	for network, server := range serve(t, newTable(t)) {
		r := net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server)
		}}
		got, err := r.LookupNetIP(t.Context(), "ip", "Files.Example.COM.")
		slices.SortFunc(got, netip.Addr.Compare)
		if want := []netip.Addr{netip.MustParseAddr("198.18.1.0"), netip.MustParseAddr("fd53:0:0:1::100")}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, error %v; want %v", network, got, err, want)
		}
		if back, err := r.LookupAddr(t.Context(), "fd53:0:0:1::100"); err != nil || !slices.Equal(back, []string{"files.example.com."}) {
			t.Errorf("%s: the address has the names %q, error %v", network, back, err)
		}
		var missing *net.DNSError
		if got, err := r.LookupHost(t.Context(), "evil.org."); !errors.As(err, &missing) || !missing.IsNotFound {
			t.Errorf("%s: evil.org has %v, error %v", network, got, err)
		}
		if got, err := r.LookupTXT(t.Context(), "pypi.org."); !errors.As(err, &missing) || !missing.IsNotFound {
			t.Errorf("%s: pypi.org has the text %v, error %v", network, got, err)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	for _, m := range []dnsmessage.Message{
		message("pypi.org", dnsmessage.TypeA), message(long, dnsmessage.TypeTXT, withOPT(0)), message("evil.org", dnsmessage.TypeAAAA),
		message("0.1.18.198.in-addr.arpa", dnsmessage.TypePTR),
		message("0.0.1.0"+strings.Repeat(".0", 12)+".1.0.0.0.0.0.0.0.0.0.0.0.3.5.d.f.ip6.arpa", dnsmessage.TypePTR, withOPT(1<<16)),
	} {
		f.Add(pack(f, m))
	}
	table := newTable(f, long)
	f.Fuzz(func(t *testing.T, query []byte) {
		b, e := Answer(query, allowed, table)
		if b == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(b); err != nil {
			t.Fatalf("answer %x: %v", b, err)
		}
		if len(b) > 512 || !m.Response || m.ID != binary.BigEndian.Uint16(query) || len(m.Answers) > 1 {
			t.Errorf("%d bytes: %+v", len(b), m)
		}
		if len(m.Answers) == 1 && e.Type != dnsmessage.TypePTR && !allowed(e.Name) && !strings.HasSuffix("."+e.Name, ".localhost") {
			t.Errorf("%q has an answer: %+v", e.Name, m)
		}
	})
}
