package sandboxtest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// keptOutput is the output of a detached command, in a file.
type keptOutput struct {
	*streams.LogWriter
	file *os.File
}

// end closes the file. It says how much output was dropped.
func (k *keptOutput) end() (omitted int64) {
	if f, err := os.Open(k.file.Name()); err == nil {
		omitted, _ = streams.LogFile{File: f, Ring: true}.Omitted() // the files can be removed
		f.Close()
	}
	k.file.Close()
	return omitted
}

// keepOutput makes the files for the output of a detached command.
func (e *execution) keepOutput(limit int64) error {
	root, err := e.instance.root()
	if err != nil {
		return err
	}
	root.Close()
	for n := range e.kept {
		file, err := os.CreateTemp(e.instance.dir, "output")
		if err != nil {
			return err
		}
		e.kept[n] = &keptOutput{file: file, LogWriter: streams.NewLogWriter(file, cmp.Or(limit, sandbox.OutputLimit))}
	}
	return nil
}

// Execs implements [sandbox.Attacher].
func (i *instance) Execs(context.Context) ([]sandbox.ExecInfo, error) {
	if i.ctx.Err() != nil {
		return nil, sandbox.ErrNotFound
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	var all []sandbox.ExecInfo
	for _, id := range slices.Sorted(maps.Keys(i.execs)) {
		e := i.execs[id]
		all = append(all, sandbox.ExecInfo{ID: id, Args: e.args, Started: e.begun, Detached: e.detached(), Ended: e.hasEnded()})
	}
	return all, nil
}

// Attach implements [sandbox.Attacher].
func (i *instance) Attach(_ context.Context, id string) (sandbox.Execution, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.execs[id]
	if e == nil || !e.detached() {
		return nil, sandbox.ErrNotFound
	}
	return e.attach()
}

// attach opens the output of a detached command.
func (e *execution) attach() (*attachedExecution, error) {
	a := &attachedExecution{execution: e, closed: make(chan struct{})}
	for n, k := range e.kept {
		file, err := os.Open(k.file.Name())
		if err != nil {
			return nil, errors.Join(err, a.Close())
		}
		a.output[n] = file
	}
	return a, nil
}

// attachedExecution is a detached command to a caller. The command goes on after Close.
type attachedExecution struct {
	*execution
	output  [2]*os.File
	closed  chan struct{}
	closing sync.Once
	// hasResult says that this attachedExecution has got the Result. The instance's mutex guards it.
	hasResult bool
}

// ID implements [sandbox.Execution].
func (a *attachedExecution) ID() string { return a.id }

// Output has the kept output.
func (a *attachedExecution) Output() (stdout, stderr streams.LogFile) {
	return streams.LogFile{File: a.output[0], Ring: true}, streams.LogFile{File: a.output[1], Ring: true}
}

// Wait implements [sandbox.Execution]. One attachedExecution gets the Result.
func (a *attachedExecution) Wait(ctx context.Context) (sandbox.Result, error) {
	select {
	case <-a.ended:
	case <-a.closed:
		return sandbox.Result{}, os.ErrClosed
	case <-ctx.Done():
		return sandbox.Result{}, ctx.Err()
	}
	i := a.instance
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.execs[a.id] != a.execution && !a.hasResult {
		return sandbox.Result{}, sandbox.ErrNotFound
	}
	delete(i.execs, a.id)
	a.hasResult = true
	return a.result, nil
}

// Close implements [sandbox.Execution].
func (a *attachedExecution) Close() error {
	a.closing.Do(func() { close(a.closed) })
	var errs []error
	for n, file := range a.output {
		if file != nil {
			errs = append(errs, file.Close())
			a.output[n] = nil
		}
	}
	return errors.Join(errs...)
}
