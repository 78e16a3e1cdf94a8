package sandboxes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"strconv"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A networkLog has the decisions of the proxied network about a sandbox.
type networkLog struct {
	name       string
	events     iter.Seq2[sandbox.NetworkEvent, error]
	asJSON     bool
	out, notes io.Writer
}

func newNetworkLog(ctx context.Context, cmd *cli.Command, box *sandbox.Sandbox, follow bool) networkLog {
	return networkLog{
		name: cmd.Args().First(), events: box.NetworkEvents(ctx, follow), asJSON: cmd.Bool("json"),
		out: cmd.Root().Writer, notes: cmd.Root().ErrWriter,
	}
}

// print prints the decisions, one in a line, until the sandbox is removed or the user ends the command.
func (l networkLog) print() error {
	isEmpty := true
	for event, err := range l.events {
		switch {
		case errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return err
		}
		isEmpty = false
		if l.asJSON {
			err = json.NewEncoder(l.out).Encode(event)
		} else {
			_, err = fmt.Fprintln(l.out, decisionLine(event))
		}
		if err != nil {
			return err
		}
	}
	if isEmpty {
		fmt.Fprintf(l.notes, "no decisions: sandbox %s has not used the network proxied\n", l.name)
	}
	return nil
}

// decisionLine is one decision for a person. The program inside has chosen the name and parts of the reason.
func decisionLine(e sandbox.NetworkEvent) string {
	target := cmp.Or(e.Name, e.Address)
	if e.Port != 0 {
		target = net.JoinHostPort(target, strconv.Itoa(int(e.Port)))
	}
	line := fmt.Sprintf("%s %-7s %s", e.Time.Local().Format(time.DateTime), e.Decision, target)
	if e.Sent != 0 || e.Received != 0 {
		line += fmt.Sprintf("  %s sent, %s received", sizeText(e.Sent), sizeText(e.Received))
	}
	if e.Upstream != "" {
		line += "  through " + e.Upstream
	}
	if e.Rule != "" {
		line += "  rule " + e.Rule
	}
	if e.Reason != "" {
		line += "  " + e.Reason
	}
	return line
}

// suggest prints the rules that the sandbox has needed so far, one in a line. It suggests no rule for a refused
// connection, but a note says that there are some.
func (l networkLog) suggest() error {
	var events []sandbox.NetworkEvent
	refused := 0
	for event, err := range l.events {
		if err != nil {
			return err
		}
		events = append(events, event)
		if event.Decision == sandbox.NetworkDenied {
			refused++
		}
	}
	rules := sandbox.SuggestRules(events)
	switch {
	case refused > 0:
		fmt.Fprintf(l.notes, "refused so far: %d; see the reasons with: network --log %s\n", refused, l.name)
	case len(rules) == 0:
		fmt.Fprintf(l.notes, "no rules: sandbox %s has reached nothing over the network proxied\n", l.name)
	}
	if l.asJSON {
		return json.NewEncoder(l.out).Encode(append([]string{}, rules...))
	}
	return commandline.PrintEach(l.out, rules, func(rule string) string { return "--allow " + commandline.ShellWords([]string{rule}) })
}
