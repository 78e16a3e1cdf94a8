package sandbox

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
)

// attach takes up a detached command.
func attach(ctx context.Context, s *Sandbox, a Attacher, execID string, stdout, stderr io.Writer) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if execID == "" {
		return nil, &ConfigError{Reason: "no exec id to attach to; Execs lists those there are"}
	}
	execution, err := a.Attach(ctx, execID)
	if err != nil {
		return nil, err
	}
	p := &Process{sandbox: s, execution: execution, detached: true, begun: time.Now()}
	if err := execution.Started(ctx); err != nil && !errors.As(err, new(*NotRunError)) {
		return nil, errors.Join(err, execution.Close())
	}
	p.captureKept(OutputLimit)
	stdout, stderr = streams.Together(stdout, stderr)
	if stdout != nil {
		p.kept.out[0].to, p.stdout = stdout, nil
	}
	if stderr != nil {
		p.kept.out[1].to, p.stderr = stderr, nil
	}
	p.kept.follow()
	p.follow(ctx)
	return p, nil
}

// captureKept puts the output of a detached command into its Result.
func (p *Process) captureKept(limit int64) {
	stdout, stderr, ok := logsOf(p.execution)
	if !ok {
		return
	}
	p.stdout, p.stderr = &streams.Capture{Limit: limit}, &streams.Capture{Limit: limit}
	p.kept.out[0].to, p.kept.out[1].to = p.stdout, p.stderr
	p.kept.out[0].file, p.kept.out[1].file = stdout, stderr
	p.kept.ended = make(chan struct{})
}

// keptOutput are the files that hold the output of a detached command.
type keptOutput struct {
	out     [2]keptStream
	ended   chan struct{} // closed once nothing more comes
	copying sync.WaitGroup
}

type keptStream struct {
	file   streams.LogFile // without a File nothing is kept
	to     io.Writer
	offset int64
	end    int64 // of the last lines, if only these are copied
	err    error
	// omitted counts the bytes that were not kept until their copy. tell, if set, is called where
	// they are missing.
	omitted int64
	tell    func(bytes int64) error
}

// omit counts missing bytes.
func (s *keptStream) omit(bytes int64) error {
	s.omitted += bytes
	if s.tell == nil {
		return nil
	}
	return s.tell(bytes)
}

// follow copies the present output and all later output to the caller's writers. The
// output for the Result is read at the end.
func (k *keptOutput) follow() {
	for i := range k.out {
		out := &k.out[i]
		if _, atEnd := out.to.(*streams.Capture); atEnd || out.file.File == nil {
			continue
		}
		k.copying.Go(func() { out.err = out.follow(k.ended) })
	}
}

// glance is how often a file is looked at that grows. To be told, by inotify(7),
// takes one of the 128 instances that a user has.
const glance = 20 * time.Millisecond

func (s *keptStream) follow(ended <-chan struct{}) error {
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return s.copy()
		case <-tick.C:
			if err := s.copy(); err != nil {
				return err
			}
		}
	}
}

// copy copies the output that was not copied yet.
func (s *keptStream) copy() error {
	next, err := s.file.Copy(s.to, s.offset, s.omit)
	s.offset = next
	return err
}

// finish returns when all output has been taken, as that of streams.
func (k *keptOutput) finish(ctx context.Context) error {
	if k.ended == nil {
		return nil
	}
	close(k.ended)
	var errs []error
	for i := range k.out {
		if _, atEnd := k.out[i].to.(*streams.Capture); atEnd && k.out[i].file.File != nil {
			errs = append(errs, k.out[i].copy())
		}
	}
	if err := streams.Await(ctx, &k.copying); err != nil {
		return err
	}
	return errors.Join(append(errs, streams.IgnoreEnough(k.out[0].err), streams.IgnoreEnough(k.out[1].err))...)
}
