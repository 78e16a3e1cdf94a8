package jobs

import (
	"os"
	"reflect"

	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// filesName is the name of the program that serves files, among a sandbox's commands and
// processes.
const filesName = "sandbox-files"

// filesRequest is the command that serves a sandbox's files: a program of ours,
// never one of the sandbox's, and nothing that the sandbox's configuration can
// tell it. It is in the sandbox as any command is, under the same limits.
func (l *Sessions) filesRequest(r record.Record, c launch.Command, files [3]*os.File) (launch.Command, agent.Command, error) {
	if !reflect.DeepEqual(c, launch.Command{Files: true}) {
		return c, agent.Command{}, &launch.ConfigError{Reason: "a command that serves the sandbox's files is nothing else"}
	}
	program, err := l.filesProgram()
	if err != nil {
		return c, agent.Command{}, err
	}
	c.Args = []string{filesName}
	request, err := NewRequest(r, launch.Command{Args: c.Args}, files)
	request.Program = program
	request.Dir = "/"
	request.Env = []string{"GOMAXPROCS=2", "GOTRACEBACK=none"} // few threads: the sandbox's limit counts them
	return c, request, err
}
