package sandboxes

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// events has these decisions, and then err.
func events(err error, all ...sandbox.NetworkEvent) func(func(sandbox.NetworkEvent, error) bool) {
	return func(yield func(sandbox.NetworkEvent, error) bool) {
		for _, e := range all {
			if !yield(e, nil) {
				return
			}
		}
		if err != nil {
			yield(sandbox.NetworkEvent{}, err)
		}
	}
}

func TestANetworkLogIsPrinted(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	allowed := sandbox.NetworkEvent{
		Time: at, Name: "pypi.org", Port: 443, Sent: 1773, Received: 28570, Rule: "pypi.org", Decision: sandbox.NetworkAllowed,
	}
	denied := sandbox.NetworkEvent{Time: at, Name: "evil.org", Decision: sandbox.NetworkDenied, Reason: "evil.org is not allowed"}
	failure := errors.New("failure")
	for name, x := range map[string]struct {
		events                         func(func(sandbox.NetworkEvent, error) bool)
		log, logNotes                  string
		suggestions, asJSON, suggNotes string
		err                            error
	}{
		"none": {
			events(nil), "", "no decisions: sandbox box has not used the network proxied\n",
			"", "[]\n", "no rules: sandbox box has reached nothing over the network proxied\n", nil,
		},
		"both": {
			events(nil, allowed, denied),
			"2026-01-02 15:04:05 allowed pypi.org:443  1.731KiB sent, 27.9KiB received  rule pypi.org\n" +
				"2026-01-02 15:04:05 denied  evil.org  evil.org is not allowed\n", "",
			"--allow pypi.org:443\n", "[\"pypi.org:443\"]\n", "refused so far: 1; see the reasons with: network --log box\n", nil,
		},
		"allowed": {
			events(nil, allowed), "2026-01-02 15:04:05 allowed pypi.org:443  1.731KiB sent, 27.9KiB received  rule pypi.org\n", "",
			"--allow pypi.org:443\n", "[\"pypi.org:443\"]\n", "", nil,
		},
		"an error": {events(failure), "", "", "", "", "", failure},
	} {
		check := func(asJSON bool, act func(networkLog) error, wantOut, wantNotes string) {
			var out, notes strings.Builder
			err := act(networkLog{name: "box", events: x.events, asJSON: asJSON, out: &out, notes: &notes})
			if out.String() != wantOut || notes.String() != wantNotes || !errors.Is(err, x.err) {
				t.Errorf("%s: %q, notes %q, error %v; want %q, notes %q", name, out.String(), notes.String(), err, wantOut, wantNotes)
			}
		}
		check(false, networkLog.print, x.log, x.logNotes)
		check(false, networkLog.suggest, x.suggestions, x.suggNotes)
		check(true, networkLog.suggest, x.asJSON, x.suggNotes)
	}
}
