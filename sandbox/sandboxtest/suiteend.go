package sandboxtest

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// endClaims are about commands that do not end by themselves.
var endClaims = []claim{
	{"a timeout ends a command", "", checkTimeout},
	{"a timeout of the command comes before that of the sandbox", "", checkTwoTimeouts},
	{"a Result tells whether the command has ended in the grace", "", checkGrace},
	{"the end of a context ends its command", "", checkContext},
	{"the end of a context ends a wait alone", "", checkWaitContext},
	{"nothing of a command goes on after Wait", "", checkRest},
}

func checkTimeout(w *world) {
	sb := w.box()
	w.longEnough(func(timeout time.Duration) bool {
		c := shell("echo started; sleep 1000")
		c.Timeout = timeout
		r := w.exec(sb, c)
		if r.Status != sandbox.StatusTimedOut || r.ExitCode != 124 || !strings.Contains(r.Reason, " "+timeout.String()+" ") {
			w.Fatalf("%+v", r)
		}
		return string(r.Stdout) == "started\n"
	})
}

func checkTwoTimeouts(w *world) {
	config := w.config()
	config.Timeout = sandbox.Duration(100 * time.Millisecond)
	sb := w.create(config)
	if r := w.run(sb, "sleep 1000"); r.Status != sandbox.StatusTimedOut {
		w.Errorf("of the sandbox: %+v", r)
	}
	c := shell("sleep 0.3")
	c.Timeout = w.patience
	if r := w.exec(sb, c); !r.OK() {
		w.Errorf("of the command: %+v", r)
	}
}

func checkGrace(w *world) {
	const obeys, ignores = `trap "exit 0" TERM`, `trap "" TERM`
	config := w.config()
	config.Grace = sandbox.Grace(30 * time.Second)
	sb := w.create(config)
	for name, test := range map[string]struct {
		line    string
		grace   time.Duration // of the command; 0: the sandbox's
		timeout time.Duration // 0: the caller gives up
		status  sandbox.Status
		code    int
		signal  string
		reason  string
	}{
		"timeout, obeys":   {obeys, 0, time.Second, sandbox.StatusTimedOut, 124, "", "still running after 1s and ended by itself after SIGTERM, with exit code 0"},
		"timeout, ignores": {ignores, 300 * time.Millisecond, time.Second, sandbox.StatusTimedOut, 124, "", "did not end within 300ms after SIGTERM"},
		"timeout, none":    {ignores, -1, time.Second, sandbox.StatusTimedOut, 124, "", "after 1s and was killed with all it had started"},
		"gave up, obeys":   {obeys, 0, 0, sandbox.StatusSignaled, 143, "SIGTERM", "gave up, and the command ended by itself after SIGTERM"},
		"gave up, ignores": {ignores, 300 * time.Millisecond, 0, sandbox.StatusSignaled, 137, "SIGKILL", "did not end within 300ms after SIGTERM"},
		"gave up, none":    {ignores, -1, 0, sandbox.StatusSignaled, 137, "SIGKILL", "gave up, and the command was killed with all it had started"},
	} {
		c, out := shell(test.line+"; echo begun; while :; do sleep 0.05; done"), &buffer{}
		c.Timeout, c.Grace, c.Stdout = test.timeout, test.grace, out
		ctx, cancel := context.WithCancel(w.Context())
		p, err := sb.Start(ctx, c)
		w.must(err)
		if test.timeout == 0 {
			w.await(out, "begun\n")
			cancel()
		}
		r, err := w.end(p)
		if err != nil || r.Status != test.status || r.ExitCode != test.code || r.Signal != test.signal || !strings.Contains(r.Reason, test.reason) {
			w.Errorf("%s: %+v, %v", name, r, err)
		}
		cancel()
	}
}

func checkContext(w *world) {
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	c := shell("echo started; echo ready >&2; sleep 1000")
	c.Stderr = writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil })
	r, err := w.box().Exec(ctx, c)
	if err != nil || r.Status != sandbox.StatusSignaled || r.Signal != "SIGTERM" || string(r.Stdout) != "started\n" || !strings.Contains(r.Reason, "gave up") {
		w.Errorf("%+v, %v", r, err)
	}
}

// checkWaitContext asks the Execution: the context of a Process ends the command.
func checkWaitContext(w *world) {
	instance, err := w.provider.Create(w.Context(), sandbox.Request{Name: w.name(), Config: w.config()})
	w.must(err)
	defer func() { w.must(w.Remove(w.Context(), instance.Info().ID)) }()
	e, err := instance.Start(w.Context(), shell("sleep 1; exit 7"), [3]*os.File{})
	w.must(err)
	ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
	defer cancel()
	if r, err := e.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		w.Errorf("%+v, %v", r, err)
	}
	if r, err := e.Wait(w.Context()); err != nil || r.ExitCode != 7 {
		w.Errorf("then: %+v, %v", r, err)
	}
	w.must(e.Close())
}

func checkRest(w *world) {
	sb := w.box()
	const begin = "(while :; do touch alive; sleep 0.02; done) & until [ -e alive ]; do sleep 0.01; done; "
	gone := func(how string) {
		w.Helper()
		w.eventually("the end of all after "+how, func() bool {
			return string(w.run(sb, "rm -f alive; sleep 0.2; ls").Stdout) == ""
		})
	}
	if r := w.run(sb, begin+"exit 3"); r.ExitCode != 3 {
		w.Errorf("%+v", r)
	}
	gone("an exit")
	w.longEnough(func(timeout time.Duration) bool {
		c := shell(begin + "echo begun; wait")
		c.Timeout = timeout
		r := w.exec(sb, c)
		if r.Status != sandbox.StatusTimedOut {
			w.Fatalf("%+v", r)
		}
		return string(r.Stdout) == "begun\n"
	})
	gone("a timeout")
	p, out := w.start(sb, shell(begin+"echo begun; wait"))
	w.await(out, "begun\n")
	w.must(p.Kill())
	if r, err := w.end(p); err != nil || r.Signal != "SIGKILL" {
		w.Errorf("%+v, %v", r, err)
	}
	gone("a kill")
}
