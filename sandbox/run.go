package sandbox

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
)

// Run runs a line of shell with the sandbox's /bin/sh, without input, and returns its
// Result with the output. The timeout is the Config's, or RunTimeout. The timeout or ctx
// end the line with all that it has started, and the Result has the output so far.
//
// An error says that the sandbox failed. A failed line is no error.
func (s *Sandbox) Run(ctx context.Context, line string) (Result, error) {
	c := Command{Args: []string{"/bin/sh", "-c", line}}
	if s.info.Config.Timeout == 0 {
		c.Timeout = RunTimeout
	}
	return s.Exec(ctx, c)
}

// Exec runs one command and returns its Result: Start and Wait. Without writers, the
// output is in the Result. The timeout or ctx end the command with all that it has
// started, and the Result has the output so far.
//
// An error says that the sandbox failed or that the Command makes no sense (*ConfigError),
// or is the error of a writer. A failed command is no error.
func (s *Sandbox) Exec(ctx context.Context, c Command) (Result, error) {
	if c.Detached {
		return Result{}, &ConfigError{Reason: "a detached command is not waited for: use Start"}
	}
	p, err := s.Start(ctx, c)
	if err != nil {
		return Result{ID: s.info.ID}, err
	}
	return p.Wait()
}

// Start starts a command. It does not wait for it to be executed: a program that
// is not there is a Result of Wait. Each Process must be waited for or closed.
//
// When ctx is done, the command ends with all that it has started, and Wait
// returns its Result. A detached one goes on, and Wait returns ctx's error. Of a
// detached command Start returns once it runs, so that its ID is known.
//
// Errors: *ConfigError if the Command makes no sense, ErrClosed, ctx's if that
// was done before the command was handed over. Others, such as
// ErrNotFound, ErrNotRunning and ErrPaused, may be known only to Wait.
func (s *Sandbox) Start(ctx context.Context, c Command) (*Process, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, errorAbout(s.info.ID, err)
	}
	if err := s.lookup(ctx, &c); err != nil {
		return nil, err
	}
	c.OutputLimit = cmp.Or(c.OutputLimit, OutputLimit)
	p := &Process{sandbox: s, detached: c.Detached, grace: cmp.Or(Grace(c.Grace), s.info.Config.Grace).Time()}
	if !c.Detached {
		p.capture(&c)
	}
	if err := p.launch(ctx, c); err != nil {
		return nil, errorAbout(s.info.ID, err)
	}
	p.follow(ctx)
	return p, nil
}

// launch starts the command and connects its streams.
func (p *Process) launch(ctx context.Context, c Command) (err error) {
	if c.Terminal == nil && !c.Detached {
		if err := p.streams.Open(c.Stdin, c.Stdout, c.Stderr); err != nil {
			return err
		}
	}
	p.begun = time.Now()
	p.execution, err = p.sandbox.instance.Start(ctx, c, p.streams.Inside)
	p.streams.CloseInside()
	if err != nil {
		p.streams.Abandon()
		if notRun, ok := errors.AsType[*NotRunError](err); ok {
			return advised(notRun)
		}
		return err
	}
	if c.Terminal == nil && !c.Detached {
		p.streams.Copy()
		return nil
	}
	err = p.execution.Started(ctx)
	var notRun *NotRunError
	switch {
	case errors.As(err, &notRun): // which its Result says
	case err != nil:
		return errors.Join(err, p.execution.Close())
	case c.Terminal != nil:
		return p.joinTerminal(c)
	default:
		p.captureKept(c.OutputLimit)
	}
	return nil
}

// capture gives each stream without a writer one that keeps the output.
func (p *Process) capture(c *Command) {
	if c.Stdout == nil {
		p.stdout = &streams.Capture{Limit: c.OutputLimit}
		c.Stdout = p.stdout
	}
	if c.Stderr == nil && c.Terminal == nil {
		p.stderr = &streams.Capture{Limit: c.OutputLimit}
		c.Stderr = p.stderr
	}
}
