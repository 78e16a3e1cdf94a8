package protocol

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestARequestIsAWordAndItsJSON(t *testing.T) {
	got := make(chan string, 1)
	client := connect(t, func(c *call) {
		got <- c.word + " " + string(c.body)
		c.answer(nil)
	})
	ctx := t.Context()
	for want, ask := range map[string]func() error{
		`list {}`:                       func() error { _, err := client.List(ctx); return err },
		`beginning "s"`:                 func() error { _, err := Ask(ctx, client, OpBeginning, "s"); return err },
		`pause {"id":"b","request":{}}`: func() error { return Tell(ctx, client, OpPause, "b", None{}) },
		`undo {"id":"b","request":2}`:   func() error { return Tell(ctx, client, OpUndo, "b", 2) },
		`update {"id":"b","request":{"pids":20}}`: func() error {
			return Tell(ctx, client, OpUpdate, "b", spec.Limits{Pids: 20})
		},
	} {
		if err := ask(); err != nil {
			t.Error(err)
		}
		if is := <-got; is != want {
			t.Errorf("got %s, want %s", is, want)
		}
	}
}
