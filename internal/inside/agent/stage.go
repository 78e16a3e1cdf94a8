package agent

import "fmt"

// Stage is the step at which the agent, or the child it had forked, could not
// go on. The numbers are those of cmd/sandbox-agent/stages.h.
type Stage uint32

// The agent's own start, as [Conn.Ready] reports it. To a host that connects
// later it may also say [StageConnections].
const (
	StageControl    Stage = 1
	StageStdio      Stage = 2
	StagePID        Stage = 3
	StageIdentity   Stage = 4
	StagePrivileges Stage = 5
	StageDumpable   Stage = 6
	StageSignals    Stage = 7
	StageLoop       Stage = 8
	StageListener   Stage = 9
	StageSeccomp    Stage = 10
)

// Refusals by the agent.
const (
	StageRequest     Stage = 20
	StageTable       Stage = 21
	StageFork        Stage = 22
	StageConnections Stage = 23
	StageCgroup      Stage = 24 // the child's, too
	StageNetwork     Stage = 25 // the child's
	StageOutput      Stage = 26
	StageID          Stage = 27
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
	StageNarrow      Stage = 39
	StageRoot        Stage = 40
)

// stageTexts name the attempted steps.
var stageTexts = [...]string{
	StageControl:     "take the control socket",
	StageStdio:       "check that stdio is /dev/null",
	StagePID:         "check its place in the pid namespace",
	StageIdentity:    "check its user and group",
	StagePrivileges:  "give up privileges",
	StageDumpable:    "hide its memory",
	StageSignals:     "settle signals",
	StageLoop:        "prepare to serve",
	StageListener:    "take the listening socket",
	StageSeccomp:     "enter the seccomp filter",
	StageRequest:     "read the request",
	StageTable:       "find room for another command",
	StageFork:        "fork",
	StageConnections: "find room for another connection",
	StageCgroup:      "enter the cgroup",
	StageNetwork:     "enter a network namespace of the command's own",
	StageOutput:      "take the output of a detached command",
	StageID:          "find the detached command of that id",
	StageDescriptors: "put descriptors in place",
	StagePayload:     "read the payload",
	StageSession:     "begin a session",
	StageOOMScore:    "set oom_score_adj",
	StageRlimits:     "set resource limits",
	StageCredentials: "become the user",
	StageTerminal:    "open a terminal",
	StageDirectory:   "change to directory",
	StageExec:        "execute",
	StageNarrow:      "load the filter of commands",
	StageRoot:        "enter the command's root",
}

// String names the attempted step, to stand before the reason of its failure.
func (s Stage) String() string {
	if int64(s) < int64(len(stageTexts)) && stageTexts[s] != "" {
		return stageTexts[s]
	}
	return fmt.Sprintf("stage %d", uint32(s))
}
