package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// maxErrors bounds the kept part of the text that a worker writes to its standard error.
const maxErrors = 4 << 10

// An Exit tells the end of a worker.
type Exit struct {
	Status syscall.WaitStatus
	// Errors is the first part of the text on standard error. The Go runtime writes there why it
	// ended the process. The text can be hostile.
	Errors string
}

// Run starts a worker of a kind, and returns after the end of the worker. The end of ctx kills the worker.
// The thread of Run lives as long as the worker, as [EndWithParent] needs.
func Run(ctx context.Context, kind string, args []string, files []*os.File) (Exit, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var text head
	cmd, opener, err := startWorker(ctx, kind, args, files, &text)
	if err != nil && ctx.Err() != nil {
		return Exit{}, context.Cause(ctx)
	}
	if err != nil {
		return Exit{}, err
	}
	defer opener.Close()
	// A failed write means that the worker has ended. Its status tells more.
	_, _ = opener.Write([]byte{1})
	err = cmd.Wait()
	if ctx.Err() != nil {
		return Exit{}, context.Cause(ctx)
	}
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		return Exit{}, fmt.Errorf("wait for the %s: %w", kind, err)
	}
	status, known := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !known {
		return Exit{}, fmt.Errorf("wait for the %s: no status", kind)
	}
	return Exit{status, string(text)}, nil
}

// A head keeps the first maxErrors bytes of a text.
type head []byte

func (h *head) Write(p []byte) (int, error) {
	*h = append(*h, p[:min(len(p), maxErrors-len(*h))]...)
	return len(p), nil
}
