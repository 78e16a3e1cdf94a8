package jobs

import (
	"fmt"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
)

// A refusal describes calls that the profile has refused to a command.
type refusal struct {
	calls agent.RefusedCalls
	// object ends the sentence "the profile NAME refused". wayOut follows in brackets.
	object, wayOut string
}

func refusals() []refusal {
	return []refusal{
		{agent.RefusedTrace, "to trace a process (ptrace), as debuggers and LeakSanitizer do", "allow it with --seccomp debug"},
		{agent.RefusedPerf, "performance events (perf_event_open)", "give a profile file to --seccomp"},
		{agent.RefusedBPF, "BPF programs (bpf)", "give a profile file to --seccomp"},
		{agent.RefusedNamespace, "a new namespace, as containers and the sandboxes of browsers need it", "a browser needs --no-sandbox; containers do not start in a sandbox"},
		{agent.RefusedMount, "a mount", "show a directory of the host with --bind"},
	}
}

// refusedCalls describes the refused calls of a command.
func (e commandEnd) refusedCalls() (texts []string) {
	for _, r := range refusals() {
		if e.refused&r.calls != 0 {
			texts = append(texts, fmt.Sprintf("the profile %s refused %s (%s)", e.profile, r.object, r.wayOut))
		}
	}
	return texts
}
