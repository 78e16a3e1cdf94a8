package jobs

import (
	"context"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
)

// filesName is the name of the program that serves files, among a sandbox's commands and
// processes.
const filesName = "sandbox-files"

// StartFiles starts the command that serves a sandbox's files: a program of ours, never one
// of the sandbox's, and nothing that the sandbox's configuration can tell it. It is in the
// sandbox as any command is, under the same limits, but without a timeout.
func (v *Session) StartFiles(ctx context.Context, files [3]*os.File) (*Process, error) {
	program, err := v.all.FilesProgram()
	if err != nil {
		return nil, err
	}
	r := v.Current()
	config := r.Config
	config.Timeout = 0
	c := launch.Command{Args: []string{filesName}, NoFiles: true}
	request, err := NewRequest(r, config, c, files)
	if err != nil {
		return nil, err
	}
	request.Program = program
	request.Dir = "/"
	request.Env = []string{"GOMAXPROCS=2", "GOTRACEBACK=none"} // few threads: the sandbox's limit counts them
	return v.enter(ctx, r, config, c, request)
}
