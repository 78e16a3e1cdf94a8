package gateway

import (
	"context"
	"fmt"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
)

// An embedder answers the questions of a box, through the parent. The box's mu guards an embedder.
type embedder struct {
	// decides says that an embedder is there.
	decides bool
	// open are the questions without an answer, by their numbers. The parent answers each question.
	open map[uint64]chan link.Answer
}

// A destination is a name and a port.
type destination struct {
	name string
	port uint16
}

// askFunction is the Ask of the proxy. A box without an embedder has none.
func (c *connection) askFunction() func(context.Context, string, uint16, string, string) rules.Verdict {
	c.box.mu.Lock()
	defer c.box.mu.Unlock()
	if !c.box.embedder.decides {
		return nil
	}
	return func(ctx context.Context, name string, port uint16, method, path string) rules.Verdict {
		return c.askEmbedder(ctx, link.Question{Name: name, Port: port, Method: method, Path: path})
	}
}

// askEmbedder judges a connection or a request that no rule covers. The connection waits until the embedder
// has decided. A connection that the embedder has allowed may carry any request.
func (c *connection) askEmbedder(ctx context.Context, q link.Question) rules.Verdict {
	b := c.box
	b.mu.Lock()
	v := c.askLocked(q) // the rules can have changed
	if v.Allowed || v.IsDenied() || !b.canDecideLocked(q.Name) {
		b.mu.Unlock()
		return v
	}
	if reason := b.spentLocked(); reason != "" {
		b.mu.Unlock()
		return rules.Verdict{Reason: reason}
	}
	if c.allowed == (destination{q.Name, q.Port}) {
		defer b.mu.Unlock()
		return c.countQuestionLocked(q, allowedByEmbedder())
	}
	id, answered, reason := b.openQuestionLocked(q)
	b.mu.Unlock()
	if reason != "" {
		return rules.Verdict{Reason: reason}
	}
	_ = b.gateway.report(link.Report{Kind: link.KindQuestion, Number: b.number, ID: id, Question: q}) // without a parent the process ends
	select {
	case a := <-answered:
		return c.useAnswer(q, a)
	case <-ctx.Done():
		_ = b.gateway.report(link.Report{Kind: link.KindWithdrawal, Number: b.number, ID: id}) // as above
		return rules.Verdict{Reason: "the connection ended before the embedder has answered"}
	}
}

// canDecideLocked says whether the embedder can allow a name that no rule covers.
func (b *box) canDecideLocked(name string) bool { return b.embedder.decides && endsInLetters(name) }

// openQuestionLocked returns a reason if the question cannot be asked.
func (b *box) openQuestionLocked(q link.Question) (id uint64, answered chan link.Answer, reason string) {
	switch {
	case len(b.embedder.open) >= link.MaxQuestions:
		return 0, nil, fmt.Sprintf("the embedder has %d open questions of the sandbox; try again later", link.MaxQuestions)
	case !q.IsValid():
		return 0, nil, fmt.Sprintf("the embedder cannot be asked about this request to %.255s:%d: its method or path is too long, or has unusual characters", q.Name, q.Port)
	}
	id, answered = b.gateway.lastQuestion.Add(1), make(chan link.Answer, 1)
	b.embedder.open[id] = answered
	return id, answered, ""
}

// takeAnswer gives an answer to its question. The connection of the question may have ended.
func (b *box) takeAnswer(a link.Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if answered, ok := b.embedder.open[a.ID]; ok {
		delete(b.embedder.open, a.ID)
		answered <- a // it has room for one
	}
}

// useAnswer judges with an answer. Deny rules and a grant without Ask that have come meanwhile win.
func (c *connection) useAnswer(q link.Question, a link.Answer) rules.Verdict {
	c.box.mu.Lock()
	defer c.box.mu.Unlock()
	v := c.judgeLocked(q)
	switch {
	case v.Allowed:
		return c.countQuestionLocked(q, v)
	case v.IsDenied() || !c.box.grant.Ask:
		return v
	case !a.Allowed:
		return rules.Verdict{Reason: a.Reason}
	}
	if q.Method == "" {
		c.allowed = destination{q.Name, q.Port}
	}
	return c.countQuestionLocked(q, allowedByEmbedder())
}

func allowedByEmbedder() rules.Verdict {
	return rules.Verdict{Allowed: true, Rule: link.AllowedByEmbedder}
}

// judgeLocked judges by the rules.
func (c *connection) judgeLocked(q link.Question) rules.Verdict {
	if q.Method == "" {
		return c.box.observedLocked(q.Name, c.box.rules.Connect(q.Name, q.Port))
	}
	return c.box.observedLocked(q.Name, c.box.rules.Request(q.Name, q.Port, q.Method, q.Path))
}

// countQuestionLocked counts an allowed connection or request, and keeps its question: the embedder's
// permission ends when a deny rule or a grant without Ask comes.
func (c *connection) countQuestionLocked(q link.Question, v rules.Verdict) rules.Verdict {
	isEmbedders := v.Rule == link.AllowedByEmbedder
	if q.Method == "" {
		v = c.countConnectionLocked(v)
	} else {
		v = c.countRequestLocked(v)
	}
	if v.Allowed {
		c.traffic = func() rules.Verdict {
			now := c.judgeLocked(q)
			if isEmbedders && c.box.grant.Ask && !now.IsDenied() {
				return allowedByEmbedder()
			}
			return now
		}
	}
	return v
}
