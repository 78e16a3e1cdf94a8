package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// printDecisions prints the decisions of the proxied network, one in a line, until the sandbox is removed or the
// user ends the command.
func printDecisions(ctx context.Context, out io.Writer, box *sandbox.Sandbox, asJSON bool) error {
	for event, err := range box.NetworkEvents(ctx, true) {
		switch {
		case errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return err
		case asJSON:
			err = json.NewEncoder(out).Encode(event)
		default:
			_, err = fmt.Fprintln(out, decisionLine(event))
		}
		if err != nil {
			return err
		}
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
		line += fmt.Sprintf("  %s sent, %s received", sandbox.Size(e.Sent), sandbox.Size(e.Received))
	}
	if e.Rule != "" {
		line += "  rule " + e.Rule
	}
	if e.Reason != "" {
		line += "  " + e.Reason
	}
	return line
}

// printSuggestions prints the rules that the sandbox has needed so far, one in a line.
func printSuggestions(ctx context.Context, out io.Writer, box *sandbox.Sandbox) error {
	var events []sandbox.NetworkEvent
	for event, err := range box.NetworkEvents(ctx, false) {
		if err != nil {
			return err
		}
		events = append(events, event)
	}
	for _, rule := range sandbox.SuggestRules(events) {
		if _, err := fmt.Fprintln(out, "--allow "+commandline.ShellWords([]string{rule})); err != nil {
			return err
		}
	}
	return nil
}
