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

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
)

// LogOptions say which output [Sandbox.CopyLogs] copies.
type LogOptions struct {
	// Stdout and Stderr get the streams. Nil leaves a stream out. If both are one writer, it gets one
	// call at a time.
	Stdout, Stderr io.Writer
	// Follow goes on with new output until the command has ended, a writer fails, or no writer
	// takes more.
	Follow bool
	// Tail is the number of lines of each stream to begin with, the last ones. 0: all kept lines;
	// negative: none.
	Tail int
	// Since leaves out output from before a time, as far as the times are known: they count whole
	// seconds, and output from before that by up to 1/32 of the time since may come, too. The zero
	// time leaves nothing out.
	Since time.Time
	// Omitted, if it is not nil, is called where bytes of a stream are missing, since the sandbox
	// has kept its head and its tail only. The calls come in the order of the writes of the stream.
	Omitted func(ofStderr bool, bytes int64)
}

// Logs is CopyLogs of all kept output.
func (s *Sandbox) Logs(ctx context.Context, execID string, stdout, stderr io.Writer, follow bool) error {
	return s.CopyLogs(ctx, execID, LogOptions{Stdout: stdout, Stderr: stderr, Follow: follow})
}

// CopyLogs copies the kept output of a detached command, and leaves the Result to [Sandbox.Attach].
//
// Errors: those of Attach, and those of the writers.
func (s *Sandbox) CopyLogs(ctx context.Context, execID string, o LogOptions) (err error) {
	a, err := instanceAbility[Attacher](s, "output of a command")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errorAbout(s.info.ID, fmt.Errorf("exec %s: %w", execID, err))
		}
	}()
	execution, err := a.Attach(ctx, execID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, execution.Close()) }()
	if err := execution.Started(ctx); err != nil && !errors.As(err, new(*NotRunError)) {
		return err
	}
	logs, err := logStreamsOf(execution, o)
	if err != nil {
		return err
	}
	if !o.Follow {
		return logs.copyPresent(o.Tail != 0)
	}
	return logs.follow(ctx, func() (bool, error) { return s.endedExec(ctx, execID) })
}

// logStreamsOf opens the streams that the options ask for, at the places that they choose.
func logStreamsOf(e Execution, o LogOptions) (logs logStreams, err error) {
	stdout, stderr, ok := logsOf(e)
	if !ok {
		return nil, errUnsupported
	}
	all := [2]keptStream{{file: stdout}, {file: stderr}}
	all[0].to, all[1].to = streams.Together(o.Stdout, o.Stderr)
	for i := range all {
		stream := &all[i]
		if stream.file.File == nil || stream.to == nil {
			continue
		}
		if o.Omitted != nil {
			stream.tell = func(bytes int64) error { o.Omitted(i == 1, bytes); return nil }
		}
		if stream.offset, stream.end, err = o.start(stream.file); err != nil {
			return nil, err
		}
		logs = append(logs, stream)
	}
	return logs, nil
}

// start is the offset of the first byte to copy. With a Tail it also returns where the last line ends.
func (o LogOptions) start(f streams.LogFile) (from, end int64, err error) {
	var since int64
	if o.Tail != 0 {
		if from, end, err = f.LastLines(o.Tail); err != nil {
			return 0, 0, err
		}
	}
	if !o.Since.IsZero() {
		if since, err = f.Since(o.Since); err != nil {
			return 0, 0, err
		}
	}
	return max(from, since), end, nil
}

// endedExec says whether a detached command has ended. Its Result may have been taken.
func (s *Sandbox) endedExec(ctx context.Context, execID string) (bool, error) {
	execs, err := s.Execs(ctx)
	i := slices.IndexFunc(execs, func(e ExecInfo) bool { return e.ID == execID })
	return i < 0 || execs[i].Ended, err
}

// logStreams are the standard output and the standard error of a command, or one of them.
type logStreams []*keptStream

// copyPresent copies the output up to now, or the last lines only.
func (l logStreams) copyPresent(lines bool) error {
	var errs []error
	for _, s := range l {
		var err error
		if lines {
			_, err = s.file.CopyPresent(s.to, s.offset, s.end, s.omit)
		} else {
			_, err = s.file.CopyAllPresent(s.to, s.offset, s.omit)
		}
		errs = append(errs, streams.IgnoreEnough(err))
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
func (l logStreams) follow(ctx context.Context, ended func() (bool, error)) error {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	over := make(chan struct{})
	var copying sync.WaitGroup
	var open atomic.Int32
	open.Store(int32(len(l)))
	for _, stream := range l {
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
	for _, stream := range l {
		err = errors.Join(err, streams.IgnoreEnough(stream.err))
	}
	return err
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
