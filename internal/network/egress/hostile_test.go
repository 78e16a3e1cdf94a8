package egress

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// newHostileParent is a parent with two boxes, in this process. Its worker is the test.
func newHostileParent(t testing.TB) *parent {
	p := newParent(t.TempDir(), answerTime)
	for _, key := range []string{"a", "b"} {
		file, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.admitLocked(Box{Key: key, Allow: []string{key + ".example"}, Ask: true}, []link.Role{link.Streams}, []*os.File{file}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
	}
	return p
}

// feedParent gives the parent a stream of reports as from its worker, until the end of the stream.
func feedParent(t testing.TB, p *parent, says []byte) {
	t.Helper()
	conn, theirs, err := descriptor.UnixPair()
	if err != nil {
		t.Fatal(err)
	}
	channel, err := channel.OfConn(conn, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = theirs.Write(says) // the parent may have hung up
		theirs.Close()
	}()
	p.read(channel)
	channel.Close()
	<-done
}

func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// wantUnhurt checks that only names, counts and events have changed, within their bounds.
func wantUnhurt(t testing.TB, p *parent) {
	t.Helper()
	if len(p.boxes) != 2 || len(p.keys) != 2 || p.acked > p.sent {
		t.Fatalf("the parent has %d boxes, and %d of %d orders are in force", len(p.boxes), p.acked, p.sent)
	}
	for key, b := range p.keys {
		if want := (Box{Key: key, Allow: []string{key + ".example"}, Ask: true}); !reflect.DeepEqual(b.grant, want) || len(b.files) != 1 {
			t.Errorf("box %s is %+v now", key, b.grant)
		}
		p.mu.Lock()
		if len(b.questions) > link.MaxQuestions {
			t.Errorf("box %s has %d questions", key, len(b.questions))
		}
		p.mu.Unlock()
		if len(b.record.names) > link.MaxNames {
			t.Errorf("box %s has %d names", key, len(b.record.names))
		}
	}
	entries, err := os.ReadDir(filepath.Join(p.egress.Dir, boxesName))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

func FuzzReports(f *testing.F) {
	name := frame(link.Report{Kind: link.KindName, Number: 1, Name: "a.example"}.Bytes())
	event := frame(link.Report{Kind: link.KindEvent, Number: 2, Counts: Counts{Sent: 7}, Line: `{"name":"x"}`}.Bytes())
	ack := frame(link.Report{Kind: link.KindAck, Sequence: 2}.Bytes())
	f.Add(bytes.Join([][]byte{name, event, ack}, nil))
	question := frame(link.Report{Kind: link.KindQuestion, Number: 1, ID: 1, Question: link.Question{Name: "a.example", Port: 80, Method: "GET", Path: "/"}}.Bytes())
	f.Add(append(question, frame(link.Report{Kind: link.KindWithdrawal, Number: 1, ID: 1}.Bytes())...))
	f.Add(append(ack, "\xff\xff\xff\xff"...))
	f.Add([]byte("\x00\x00\x00\x00\x01\x00\x00\x01a"))
	p := newHostileParent(f)
	f.Fuzz(func(t *testing.T, says []byte) {
		feedParent(t, p, says)
		wantUnhurt(t, p)
	})
}

func TestAHostileWorkerHurtsNobody(t *testing.T) {
	p := newHostileParent(t)
	var flood bytes.Buffer
	line := strings.Repeat("x", link.MaxLine)
	for i := range link.MaxNames + 1000 {
		flood.Write(frame(link.Report{Kind: link.KindName, Number: 1, Name: fmt.Sprintf("%d.example", i)}.Bytes()))
		if i%8 == 0 {
			flood.Write(frame(link.Report{Kind: link.KindEvent, Number: uint32(i%3 + 1), Counts: Counts{Sent: ^uint64(0)}, Line: line}.Bytes()))
		}
	}
	feedParent(t, p, flood.Bytes())
	wantUnhurt(t, p)
	if got := len(p.keys["a"].record.names); got != link.MaxNames {
		t.Errorf("box a has %d names", got)
	}
	for _, b := range p.keys {
		for _, name := range []string{eventsName, olderName} {
			if info, err := os.Stat(b.record.path(name)); err == nil && info.Size() > maxEvents {
				t.Errorf("%s has %d bytes", info.Name(), info.Size())
			}
		}
	}
}

// addTestDecider makes the test the decider of box a. The channel is the test's end.
func addTestDecider(t *testing.T, p *parent) (*decider, *channel.Conn) {
	t.Helper()
	conn, theirs, err := descriptor.UnixPair()
	if err != nil {
		t.Fatal(err)
	}
	ours, err := channel.OfConn(conn, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirConn, err := descriptor.UnixConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := channel.OfConn(theirConn, 0)
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.addDecider(ours, "a")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.serveDecider(d)
	}()
	t.Cleanup(func() { peer.Close(); <-served })
	if err := peer.Send(t.Context(), []byte(`{"number":0,"allowed":false}`)); err != nil { // asks for the notices
		t.Fatal(err)
	}
	return d, peer
}

// A flood of questions is bounded for the parent and for the embedder. The questions of another box do not
// reach the embedder.
func TestAHostileWorkerAsksWithinBounds(t *testing.T) {
	p := newHostileParent(t)
	_, peer := addTestDecider(t, p)
	var flood bytes.Buffer
	for i := range 10 * link.MaxQuestions {
		flood.Write(frame(link.Report{
			Kind: link.KindQuestion, Number: uint32(i%2 + 1), ID: uint64(i / 4), Question: link.Question{Name: fmt.Sprintf("%d.example", i), Port: 1},
		}.Bytes()))
	}
	feedParent(t, p, flood.Bytes())
	wantUnhurt(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
	defer cancel()
	numbers := map[uint64]bool{}
	for range link.MaxQuestions {
		body, _, err := peer.Receive(ctx, protocol.MaxNotice)
		if err != nil {
			t.Fatal(err)
		}
		var n protocol.Notice
		var box int
		if err := json.Unmarshal(body, &n); err != nil || n.Question == nil || numbers[n.Number] {
			t.Fatalf("%s, %v", body, err)
		}
		if _, err := fmt.Sscanf(n.Question.Name, "%d.example", &box); err != nil || box%2 != 0 {
			t.Errorf("the embedder is asked about %s", n.Question.Name)
		}
		numbers[n.Number] = true
	}
	// All questions end with the worker, and each end is told.
	p.withdrawAll(p.keys["a"].anyQuestion(t, p).worker)
	for range link.MaxQuestions {
		body, _, err := peer.Receive(ctx, protocol.MaxNotice)
		var n protocol.Notice
		if err != nil || json.Unmarshal(body, &n) != nil || n.Question != nil || !numbers[n.Number] {
			t.Fatalf("%s, %v", body, err)
		}
		delete(numbers, n.Number)
	}
}

// anyQuestion is one of the open questions.
func (b *box) anyQuestion(t *testing.T, p *parent) *question {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range b.questions {
		return q
	}
	t.Fatal("there is no question")
	return nil
}

// A decider that reads nothing is ended, and blocks no question.
func TestADeciderThatReadsNothingIsEnded(t *testing.T) {
	p := newHostileParent(t)
	d, _ := addTestDecider(t, p)
	ask := frame(link.Report{Kind: link.KindQuestion, Number: 1, ID: 1, Question: link.Question{
		Name: strings.Repeat("a", link.MaxName), Port: 1, Method: "GET", Path: "/" + strings.Repeat("p", link.MaxPath-1),
	}}.Bytes())
	withdraw := frame(link.Report{Kind: link.KindWithdrawal, Number: 1, ID: 1}.Bytes())
	eventually(t, "the end of the decider", func() bool {
		feedParent(t, p, bytes.Repeat(append(ask[:len(ask):len(ask)], withdraw...), 100))
		select {
		case <-d.ended:
			return true
		default:
			return false
		}
	})
	eventually(t, "the end of the questions", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.keys["a"].questions) == 0
	})
	wantUnhurt(t, p)
}

// A decider answers the questions of its box only, and each once.
func TestAReplyIsForOneQuestion(t *testing.T) {
	p := newHostileParent(t)
	d, peer := addTestDecider(t, p)
	b, other := p.keys["a"], p.keys["b"]
	q := &question{number: 7, answered: make(chan bool, 1)}
	foreign := &question{number: 8, answered: make(chan bool, 1)}
	p.mu.Lock()
	b.questions[7], other.questions[8] = q, foreign
	p.mu.Unlock()
	for _, text := range []string{`{"number":8,"allowed":true}`, `{"number":9,"allowed":true}`, `{"number":7}`, `{"number":7,"allowed":true}`, `{"number":7,"x":1}`} {
		if err := peer.Send(t.Context(), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-d.ended: // after the reply with an unknown field
	case <-time.After(patience):
		t.Fatal("the decider goes on")
	}
	if len(foreign.answered) != 0 || len(q.answered) != 1 || <-q.answered {
		t.Error("a reply went to another question, or the last one counts")
	}
}

// A worker that sends descriptors is ended, and they are closed.
func TestAWorkerCannotSendDescriptors(t *testing.T) {
	p := newHostileParent(t)
	conn, theirs, err := descriptor.UnixPair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	channel, err := channel.OfConn(conn, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := descriptor.Send(int(theirs.Fd()), []byte("\x01\x00\x00\x09"), int(w.Fd())); err != nil {
		t.Fatal(err)
	}
	w.Close()
	p.read(channel) // and no wait for the rest
	if err := unix.SetNonblock(int(r.Fd()), true); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if n, err := unix.Read(int(r.Fd()), make([]byte, 1)); n == 0 && err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the descriptor is still open")
		}
	}
	wantUnhurt(t, p)
}

// Both processes together stay small with many sandboxes.
func TestAThousandSandboxesNeedLittleMemory(t *testing.T) {
	const count, bound = 1000, 100 << 20
	newOutside(t)
	e := newEgress(t)
	s := newSandbox(t) // one for all: each has descriptors of its own in both processes
	for i := range count {
		box := Box{Key: fmt.Sprintf("box-%d", i), Allow: []string{"good.example", "*.example.com", "@pypi", "192.0.2.0/24"}}
		if err := e.Admit(t.Context(), box, s.sockets); err != nil {
			t.Fatal(err)
		}
	}
	last := newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "last", Allow: []string{"good.example"}}, last.sockets); err != nil {
		t.Fatal(err)
	}
	if err := last.fetch("good.example"); err != nil {
		t.Error(err)
	}
	total := 0
	for _, id := range append(parents(t, e), workers(t, e)...) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", id.Pid))
		if err != nil {
			t.Fatal(err)
		}
		var kib int
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, "Pss:"); ok {
				_, _ = fmt.Sscan(value, &kib)
			}
		}
		t.Logf("process %d has %d KiB", id.Pid, kib)
		total += kib << 10
	}
	t.Logf("%d sandboxes need %d MiB", count, total>>20)
	if total > bound {
		t.Errorf("%d bytes; want at most %d", total, bound)
	}
}

// A parent of an older version refuses a field that it does not know: the field may be a rule.
func TestUnknownFieldsAreRefused(t *testing.T) {
	a, _ := newParent(t.TempDir(), answerTime).answer(nil, []byte(`{"op":"dismiss","key":"a","only":["x"]}`), nil)
	if a.IsUnknown || !strings.Contains(a.Error, "unknown field") {
		t.Errorf("%+v", a)
	}
}
