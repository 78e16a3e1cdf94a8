package egress

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// maxReply bounds a reply, in bytes.
const maxReply = 256

// A decider is a client that answers the questions of a box, until its connection ends.
type decider struct {
	box     *box
	channel *channel.Conn
	// notices wait for the goroutine that sends them. A decider that leaves too many of them is ended.
	notices chan protocol.Notice
	ended   chan struct{}
	ending  sync.Once
}

// maxNotices is how many notices of a decider may wait: each question has two.
const maxNotices = 4 * link.MaxQuestions

// end ends the connection of the decider, and its questions.
func (d *decider) end() {
	d.ending.Do(func() {
		close(d.ended)
		d.channel.HangUp()
	})
}

// notify is false if the decider has ended.
func (d *decider) notify(n protocol.Notice) bool {
	select {
	case d.notices <- n:
		return true
	case <-d.ended:
	default:
		d.end()
	}
	return false
}

// sendAll sends the notices until the decider ends.
func (d *decider) sendAll() {
	for {
		select {
		case n := <-d.notices:
			body, err := json.Marshal(n)
			if err == nil {
				err = d.channel.Send(context.Background(), body)
			}
			if err != nil {
				d.end()
			}
		case <-d.ended:
			return
		}
	}
}

// addDecider makes a client the decider of a box.
func (p *parent) addDecider(channel *channel.Conn, key string) (*decider, error) {
	p.changing.Lock()
	defer p.changing.Unlock()
	b := p.boxByKey(key)
	if b == nil || len(b.files) == 0 {
		return nil, ErrUnknown
	}
	if !b.grant.Ask {
		return nil, fmt.Errorf("sandbox %s asks for no decisions; set Ask with the network", key)
	}
	d := &decider{box: b, channel: channel, notices: make(chan protocol.Notice, maxNotices), ended: make(chan struct{})}
	if !p.replaceDecider(b, d) {
		return nil, errors.New("another call of DecideNetwork decides already; end that call first")
	}
	p.orderLocked(p.grantOf(b), nil)
	return d, nil
}

// replaceDecider is false if the box has a decider whose client is still there.
func (p *parent) replaceDecider(b *box, d *decider) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if earlier := b.decider; earlier != nil {
		if !hasGone(earlier.channel) {
			return false
		}
		earlier.end()
	}
	b.decider = d
	return true
}

// removeDecider ends a decider. The connections that wait for it are refused.
func (p *parent) removeDecider(d *decider) {
	d.end()
	p.changing.Lock()
	defer p.changing.Unlock()
	b := d.box
	p.mu.Lock()
	isServed := p.boxes[b.number] == b && !b.isSuspended && b.decider == d
	if b.decider == d {
		b.decider = nil
	}
	p.mu.Unlock()
	if isServed {
		p.orderLocked(p.grantOf(b), nil)
	}
}

// serveDecider takes the replies of a decider until its end, and closes the channel. The client can be the user of a
// listening launcher: it gives this process no descriptors, and no close waits for a socket with SO_LINGER.
func (p *parent) serveDecider(d *decider) {
	descriptor.AtOnce(func() { d.channel.Accept(0) })
	sent, begun := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	go func() {
		defer close(sent)
		select {
		case <-begun:
			d.sendAll()
		case <-d.ended:
		}
	}()
	for {
		body, _, err := d.channel.Receive(context.Background(), maxReply)
		if err != nil {
			break
		}
		begin()
		var r protocol.Reply
		strict := json.NewDecoder(bytes.NewReader(body))
		strict.DisallowUnknownFields()
		if strict.Decode(&r) != nil {
			break
		}
		p.takeReply(d, r)
	}
	p.removeDecider(d)
	<-sent
	descriptor.AtOnce(func() {
		d.channel.Discard()
		d.channel.Close()
	})
}

// A question is open until the worker has its answer.
type question struct {
	number uint64
	worker *channel.Conn
	id     uint64 // the worker's number
	text   link.Question
	// answered has room for one reply of the decider.
	answered chan bool
	// withdrawn is closed when the worker needs the answer no more.
	withdrawn   chan struct{}
	isWithdrawn bool // guarded by the parent's mu
}

// askLocked opens a question of a worker. A worker that is not hostile opens no more than the bound.
func (p *parent) askLocked(worker *channel.Conn, b *box, r link.Report) {
	if len(b.questions) >= link.MaxQuestions {
		return
	}
	p.asked++
	q := &question{
		number: p.asked, worker: worker, id: r.ID, text: r.Question, answered: make(chan bool, 1), withdrawn: make(chan struct{}),
	}
	b.questions[q.number] = q
	go p.answerQuestion(b, b.decider, q)
}

// withdrawLocked ends a question without need of an answer.
func (b *box) withdrawLocked(worker *channel.Conn, id uint64) {
	for _, q := range b.questions {
		if q.worker == worker && q.id == id {
			q.withdrawLocked()
		}
	}
}

func (q *question) withdrawLocked() {
	if !q.isWithdrawn {
		q.isWithdrawn = true
		close(q.withdrawn)
	}
}

// withdrawAll ends the questions of a worker that has ended.
func (p *parent) withdrawAll(worker *channel.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.boxes {
		for number, q := range b.questions {
			if q.worker == worker {
				q.withdrawLocked()
				delete(b.questions, number)
			}
		}
	}
}

// takeReply gives a reply to its question. One to a question that is not open any more has no effect.
func (p *parent) takeReply(d *decider, r protocol.Reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q, ok := d.box.questions[r.Number]; ok {
		select {
		case q.answered <- r.Allowed:
		default: // the decider has replied twice
		}
	}
}

// answerQuestion waits for a decision, and sends the answer to the worker.
func (p *parent) answerQuestion(b *box, d *decider, q *question) {
	a := link.Answer{ID: q.id}
	a.Allowed, a.Reason = p.awaitReply(d, q)
	p.changing.Lock()
	defer p.changing.Unlock()
	p.mu.Lock()
	delete(b.questions, q.number) // before the worker can ask another question in its place
	p.mu.Unlock()
	if p.worker == q.worker && p.worker != nil {
		send(p.worker, link.Order{Number: b.number, Answer: &a}, nil)
	}
}

// awaitReply returns a reason for each decision that does not allow the question.
func (p *parent) awaitReply(d *decider, q *question) (allowed bool, reason string) {
	const gone = "the embedder that decides has gone"
	if d == nil || !d.notify(protocol.Notice{Number: q.number, Question: (*protocol.NetworkQuestion)(&q.text)}) {
		return false, gone
	}
	late := time.NewTimer(p.answerTime)
	defer late.Stop()
	select {
	case allowed := <-q.answered:
		if !allowed {
			reason = fmt.Sprintf("the embedder denied %s:%d", q.text.Name, q.text.Port)
		}
		return allowed, reason
	case <-d.ended:
		return false, gone
	case <-late.C:
		reason = fmt.Sprintf("the embedder did not answer within %v", p.answerTime)
	case <-q.withdrawn:
		reason = "the question was withdrawn"
	}
	d.notify(protocol.Notice{Number: q.number}) // the callback can end
	return false, reason
}
