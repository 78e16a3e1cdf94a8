//go:build !amd64

package agent

import _ "embed" // for the programs

// The programs are committed for amd64 only. On another architecture `make build` makes
// them in a checkout; without them this package does not compile.
var (
	//go:embed programs/agent-built-by-make
	program string
	//go:embed programs/files-built-by-make
	filesProgram string
)
