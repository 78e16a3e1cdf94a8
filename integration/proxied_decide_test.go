package integration

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// An embedder decides about names without a rule. Its launcher is another process, as that of a user.
func TestAnEmbedderDecidesAboutTheProxiedNetwork(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	c := newClientBy(w.sandboxes, func(cmd *exec.Cmd) *exec.Cmd { return netnstest.Command(cmd, w.host) })
	defer c.end()
	ctx := t.Context()
	box, err := c.Create(ctx, sandbox.Config{Storage: sandbox.StorageMemory, Allow: []string{nearName}, Deny: []string{"denied.test"}, Ask: true}, sandbox.Named("box"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	}()
	fetch := func(when, url, want string) {
		t.Helper()
		r, err := box.Exec(ctx, sandbox.Command{Args: []string{"curl", "--noproxy", "*", "-sS", "--max-time", "20", "http://" + url}})
		if err != nil || !strings.Contains(string(r.Stdout)+string(r.Stderr), want) {
			t.Errorf("%s: %s %s, %v; want %q", when, r.Stdout, r.Stderr, err, want)
		}
	}
	fetch("nobody decides", strangeName, "Could not resolve host")

	deciding, stop := context.WithCancel(ctx)
	ended, asked := make(chan error, 1), make(chan sandbox.NetworkQuestion, 10)
	go func() {
		ended <- box.DecideNetwork(deciding, func(_ context.Context, q sandbox.NetworkQuestion) bool {
			asked <- q
			return q.Name == strangeName && q.Path == "/word"
		})
	}()
	eventually(t, "names exist", func() bool {
		r, err := box.Exec(ctx, sandbox.Command{Args: []string{"getent", "hosts", strangeName}})
		return err == nil && r.OK()
	})
	fetch("allowed", strangeName+"/word", strangeName)
	if q, want := <-asked, (sandbox.NetworkQuestion{Name: strangeName, Port: 80, Method: "GET", Path: "/word"}); q != want {
		t.Errorf("the question is %+v, want %+v", q, want)
	}
	fetch("denied", strangeName+"/secret", "the embedder denied "+strangeName+":80")
	<-asked
	fetch("a rule allows", nearName, nearName)
	fetch("a rule denies", "denied.test", "Could not resolve host")
	if len(asked) > 0 {
		t.Errorf("a question about %+v", <-asked)
	}
	if err := box.DecideNetwork(ctx, nil); err == nil || !strings.Contains(err.Error(), "another call of DecideNetwork decides already") {
		t.Errorf("a second decider: %v", err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	fetch("the embedder has gone", strangeName+"/word", "Could not resolve host")
	if _, err := box.SetNetwork(ctx, sandbox.NetworkGrant{Network: sandbox.NetworkProxied, Allow: []string{nearName}}); err != nil {
		t.Fatal(err)
	}
	if err := box.DecideNetwork(ctx, nil); err == nil || !strings.Contains(err.Error(), "asks for no decisions") {
		t.Errorf("without Ask: %v", err)
	}
}
