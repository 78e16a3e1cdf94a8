package agent

import "fmt"

// Stage is the step at which the agent, or the child it had forked, could not
// go on. The numbers are those of cmd/sandbox-agent/stages.h.
type Stage uint32

// The agent's own start, as [Conn.Ready] reports it.
const (
	StageControl    Stage = 1
	StageStdio      Stage = 2
	StagePID        Stage = 3
	StageIdentity   Stage = 4
	StagePrivileges Stage = 5
	StageDumpable   Stage = 6
	StageSignals    Stage = 7
	StageLoop       Stage = 8
)

// Refusals by the agent.
const (
	StageRequest Stage = 20
	StageTable   Stage = 21
	StageFork    Stage = 22
)

// Refusals by the forked child.
const (
	StageDescriptors Stage = 30
	StagePayload     Stage = 31
	StageSession     Stage = 32
	StageOOMScore    Stage = 33
	StageRlimits     Stage = 34
	StageCredentials Stage = 35
	StageTerminal    Stage = 36
	StageDirectory   Stage = 37
	StageExec        Stage = 38
)

// String says what was attempted, to stand before the reason of its failure.
func (s Stage) String() string {
	switch s {
	case StageControl:
		return "take the control socket"
	case StageStdio:
		return "check that stdio is /dev/null"
	case StagePID:
		return "check that it is process 1"
	case StageIdentity:
		return "check its user and group"
	case StagePrivileges:
		return "give up privileges"
	case StageDumpable:
		return "hide its memory"
	case StageSignals:
		return "settle signals"
	case StageLoop:
		return "prepare to serve"
	case StageRequest:
		return "read the request"
	case StageTable:
		return "find room for another command"
	case StageFork:
		return "fork"
	case StageDescriptors:
		return "put descriptors in place"
	case StagePayload:
		return "read the payload"
	case StageSession:
		return "begin a session"
	case StageOOMScore:
		return "set oom_score_adj"
	case StageRlimits:
		return "set resource limits"
	case StageCredentials:
		return "become the user"
	case StageTerminal:
		return "open a terminal"
	case StageDirectory:
		return "change to directory"
	case StageExec:
		return "execute"
	default:
		return fmt.Sprintf("stage %d", uint32(s))
	}
}
