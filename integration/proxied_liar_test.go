package integration

import (
	endian "encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

// A lie is how the attacker's name server answers for a name.
type lie struct {
	// first are the addresses of the first lookup. later, if there are any, are those of all others.
	first, later []string
	// isSilent gives no answer. isTruncated sends a client from UDP to TCP.
	isSilent, isTruncated bool
	// isForged first answers with another identifier, and with another name.
	isForged bool
	// forged are the addresses of the forged answers.
	forged []string
}

// A liar is the name server of the host, which an attacker runs. It keeps all queries.
type liar struct {
	mu      sync.Mutex
	lies    map[string]lie
	lookups map[string]int
	queries []string
}

// serveLies makes a liar the name server of the host's resolv.conf(5).
func serveLies(t *testing.T, w *networkWorld) *liar {
	t.Helper()
	l := &liar{lies: map[string]lie{}, lookups: map[string]int{}}
	hostResolves(t, "nameserver "+worldServer+"\n")
	var packets net.PacketConn
	var streams net.Listener
	err := netns.Do(w.outside, func() (err error) {
		if packets, err = net.ListenPacket("udp", worldServer+":53"); err == nil {
			streams, err = net.Listen("tcp", worldServer+":53")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { packets.Close(); streams.Close() })
	go l.servePackets(packets)
	go l.serveStreams(streams)
	return l
}

func (l *liar) set(name string, x lie) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lies[name], l.lookups[name] = x, 0
}

func (l *liar) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queries, l.lookups = nil, map[string]int{}
}

// saw says whether a query had the text in its name.
func (l *liar) saw(text string) bool {
	return slices.ContainsFunc(l.asked(), func(q string) bool { return strings.Contains(strings.ToLower(q), strings.ToLower(text)) })
}

// asked lists the names and types of all queries, as they came.
func (l *liar) asked() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.queries)
}

func (l *liar) servePackets(c net.PacketConn) {
	b := make([]byte, 4096)
	for {
		n, peer, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		for _, answer := range l.answer(b[:n], false) {
			_, _ = c.WriteTo(answer, peer) // a test sees a lost answer
		}
	}
}

func (l *liar) serveStreams(s net.Listener) {
	for {
		c, err := s.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			var head [2]byte
			if _, err := io.ReadFull(c, head[:]); err != nil {
				return
			}
			query := make([]byte, endian.BigEndian.Uint16(head[:]))
			if _, err := io.ReadFull(c, query); err != nil {
				return
			}
			for _, answer := range l.answer(query, true) {
				_, _ = c.Write(append(endian.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)) // as above
			}
		}()
	}
}

// answer makes the answers to a query. A name below one that the liar knows has the same answers.
func (l *liar) answer(query []byte, isStream bool) [][]byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queries = append(l.queries, q.Name.String()+" "+q.Type.String())
	name := strings.TrimSuffix(q.Name.String(), ".")
	x, ok := l.lies[name]
	for rest := name; !ok && rest != ""; {
		_, rest, _ = strings.Cut(rest, ".")
		x, ok = l.lies[rest]
	}
	if x.isSilent {
		return nil
	}
	addresses := x.first
	if x.later != nil && l.lookups[name] >= 2 { // a lookup asks for both families
		addresses = x.later
	}
	l.lookups[name]++
	var all [][]byte
	if x.isForged {
		all = append(all, reply(m, m.ID+1, q.Name, x.forged, false), reply(m, m.ID, dnsmessage.MustNewName("other.test."), x.forged, false))
	}
	return append(all, reply(m, m.ID, q.Name, addresses, !ok, x.isTruncated && !isStream))
}

// reply packs an answer with the addresses of the query's family.
func reply(m dnsmessage.Message, id uint16, name dnsmessage.Name, addresses []string, isUnknown bool, isTruncated ...bool) []byte {
	q := m.Questions[0]
	q.Name = name
	r := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, Response: true, RecursionAvailable: true, Truncated: slices.Contains(isTruncated, true)},
		Questions: []dnsmessage.Question{q},
	}
	if isUnknown {
		r.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range addresses {
		if a := netip.MustParseAddr(text); r.Truncated {
			break
		} else if a.Is4() && q.Type == dnsmessage.TypeA {
			r.Answers = append(r.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET}, Body: &dnsmessage.AResource{A: a.As4()}})
		} else if !a.Is4() && q.Type == dnsmessage.TypeAAAA {
			r.Answers = append(r.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET}, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	packed, err := r.Pack()
	if err != nil {
		panic(err) // of fixed data
	}
	return packed
}
