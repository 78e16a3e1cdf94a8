package agent

import _ "embed" // for the programs

// program is the agent, made from cmd/sandbox-agent. filesProgram serves the files of a
// sandbox, made from cmd/sandbox-files. Both are committed, so that a program with package
// sandbox/launcher needs nothing but this module: see docs/adr/0018.
var (
	//go:embed programs/agent-amd64
	program string
	//go:embed programs/files-amd64
	filesProgram string
)
