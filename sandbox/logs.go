package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/streams"
)

// Logs copies the kept output of a detached command to the writers, and leaves the Result to
// [Sandbox.Attach]. With follow it goes on with new output until the command has ended, a writer
// fails, or no writer takes more. A nil writer leaves that stream out. One writer for both streams gets
// one call at a time.
//
// Errors: those of Attach, and those of the writers.
func (s *Sandbox) Logs(ctx context.Context, execID string, stdout, stderr io.Writer, follow bool) (err error) {
	a, err := capability[Attacher](s, "output of a command")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = about(s.info.ID, fmt.Errorf("exec %s: %w", execID, err))
		}
	}()
	execution, err := a.Attach(ctx, execID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, execution.Close()) }()
	var notRun *NotRunError
	if err := execution.Started(ctx); err != nil && !errors.As(err, &notRun) {
		return err
	}
	files, ok := execution.(outputKeeper)
	if !ok {
		return errUnsupported
	}
	var logs logStreams
	logs[0].file, logs[1].file = files.Output()
	logs[0].to, logs[1].to = streams.Together(stdout, stderr)
	if !follow {
		return logs.copy()
	}
	return logs.follow(ctx, func() (bool, error) { return s.endedExec(ctx, execID) })
}

// endedExec says whether a detached command has ended. Its Result may have been taken.
func (s *Sandbox) endedExec(ctx context.Context, execID string) (bool, error) {
	execs, err := s.Execs(ctx)
	i := slices.IndexFunc(execs, func(e ExecInfo) bool { return e.ID == execID })
	return i < 0 || execs[i].Ended, err
}

// logStreams are the standard output and the standard error of a command.
type logStreams [2]keptStream

// copy copies the output that was not copied yet.
func (l *logStreams) copy() error {
	var errs []error
	for i := range l {
		if l[i].file != nil && l[i].to != nil {
			errs = append(errs, streams.IgnoreEnough(l[i].copy()))
		}
	}
	return errors.Join(errs...)
}

const (
	// endGlance is how often a follower asks for the end of the command.
	endGlance = 200 * time.Millisecond
	// quietTime is how long the output of an ended command may be on its way to its file.
	quietTime = 500 * time.Millisecond
)

// follow copies until ended says that the command has ended, and the output after that. It ends earlier when a writer
// fails, or no writer takes more.
func (l *logStreams) follow(ctx context.Context, ended func() (bool, error)) error {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	over := make(chan struct{})
	var taken []*keptStream
	for i := range l {
		if l[i].file != nil && l[i].to != nil {
			taken = append(taken, &l[i])
		}
	}
	var copying sync.WaitGroup
	var open atomic.Int32
	open.Store(int32(len(taken)))
	for _, stream := range taken {
		copying.Go(func() {
			stream.err = stream.follow(over)
			if open.Add(-1) == 0 || streams.IgnoreEnough(stream.err) != nil {
				stop()
			}
		})
	}
	err := awaitEnd(waiting, ended)
	if waiting.Err() != nil && ctx.Err() == nil {
		err = nil // the errors of the writers follow
	}
	close(over)
	copying.Wait()
	return errors.Join(err, streams.IgnoreEnough(l[0].err), streams.IgnoreEnough(l[1].err))
}

func awaitEnd(ctx context.Context, ended func() (bool, error)) error {
	tick := time.NewTicker(endGlance)
	defer tick.Stop()
	for {
		over, err := ended()
		if err != nil {
			return err
		}
		wait := tick.C
		if over {
			wait = time.After(quietTime)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wait:
		}
		if over {
			return nil
		}
	}
}
