package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

type connectFunc = func(ctx context.Context) (*protocol.Client, *ownLauncher, error)

// connector chooses the way to a launcher.
func connector(c ManagerConfig) (connectFunc, error) {
	ways := 0
	for _, set := range []bool{c.Socket != "", len(c.Launcher) > 0, c.Dial != nil} {
		if set {
			ways++
		}
	}
	var options []string
	if c.Pool != nil {
		bounds, err := c.Pool.Complete()
		if err != nil {
			return nil, fault.Refusal(err)
		}
		options = []string{"--pool", bounds.String()}
	}
	switch {
	case c.Pool != nil && (c.Socket != "" || c.Dial != nil):
		return nil, &ConfigError{Reason: "Pool is for a launcher of the program's own; start the launcher of Socket or Dial with --pool"}
	case ways > 1:
		return nil, &ConfigError{Reason: "at most one of Socket, Launcher and Dial says how to reach a launcher"}
	case c.Dial != nil:
		return func(ctx context.Context) (*protocol.Client, *ownLauncher, error) {
			conn, err := c.Dial(ctx)
			if err != nil {
				return nil, nil, fmt.Errorf("the launcher %w: %w", ErrUnavailable, err)
			}
			client, err := protocol.NewClient(conn)
			return client, nil, err
		}, nil
	case c.Socket != "":
		return dialSocket(c.Socket), nil
	case len(c.Launcher) > 0:
		if listens(c.Launcher) {
			return nil, &ConfigError{Reason: fmt.Sprintf("Launcher %q would listen on a socket and not serve this program; add --fd 3, or name the socket in Socket",
				strings.Join(c.Launcher, " "))}
		}
		command := slices.Concat(c.Launcher, options)
		return func(ctx context.Context) (*protocol.Client, *ownLauncher, error) { return startLauncher(ctx, command) }, nil
	case c.Pool != nil:
		return func(ctx context.Context) (*protocol.Client, *ownLauncher, error) { return startInstalled(ctx, options) }, nil
	}
	return connectDefault, nil
}

func dialSocket(socket string) connectFunc {
	return func(ctx context.Context) (*protocol.Client, *ownLauncher, error) {
		client, err := protocol.Dial(ctx, socket)
		return client, nil, err
	}
}

// program is the one that has the launcher.
const program = "sandbox-runtime"

// listens says that a command is this program's launcher without the option --fd.
func listens(command []string) bool {
	i := slices.Index(command, "launcher")
	if i < 1 || !slices.ContainsFunc(command[:i], func(word string) bool { return filepath.Base(word) == program }) {
		return false
	}
	return !slices.ContainsFunc(command[i:], func(word string) bool {
		name, _, _ := strings.Cut(word, "=")
		return strings.TrimLeft(name, "-") == "fd"
	})
}

// connectDefault prefers a launcher that is there to one of the program's own. A launcher of an
// ordinary user cannot make sandboxes, so a program of such a user needs one that is there.
func connectDefault(ctx context.Context) (*protocol.Client, *ownLauncher, error) {
	if os.Geteuid() != 0 {
		client, err := protocol.Dial(ctx, SharedSocket)
		return client, nil, err
	}
	client, err := protocol.Dial(ctx, DefaultSocket)
	if !errors.Is(err, ErrUnavailable) {
		return client, nil, err
	}
	client, own, startErr := startInstalled(ctx, nil)
	if _, missing := errors.AsType[*exec.Error](startErr); missing {
		return nil, nil, fmt.Errorf("%w; or %w", err, startErr)
	}
	return client, own, startErr
}

// startInstalled starts a launcher of the program's own, from the PATH.
func startInstalled(ctx context.Context, options []string) (*protocol.Client, *ownLauncher, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, nil, fmt.Errorf("put %s on the PATH (%w), for a launcher of this program's own", program, err)
	}
	return startLauncher(ctx, append([]string{path, "launcher", "--fd", "3"}, options...))
}

// An ownLauncher is a launcher that is this program's child.
type ownLauncher struct {
	cmd *exec.Cmd

	gone chan struct{}
}

func startLauncher(ctx context.Context, command []string) (_ *protocol.Client, _ *ownLauncher, err error) {
	ours, theirs, err := descriptor.UnixPair()
	if err != nil {
		return nil, nil, err
	}
	own := &ownLauncher{cmd: exec.Command(command[0], command[1:]...), gone: make(chan struct{})}
	own.cmd.ExtraFiles = []*os.File{theirs}
	said := &streams.Capture{Limit: 4 << 10}
	own.cmd.Stderr = said
	// Signals that a user types at this program must not end the launcher first.
	own.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = own.cmd.Start()
	theirs.Close() // it has its own: its end is to be noticed
	if err != nil {
		_ = ours.Close() // it was of no use
		return nil, nil, fmt.Errorf("launcher %q %w: %w", strings.Join(command, " "), ErrUnavailable, err)
	}
	go func() { // ends with the child, which wait sees to
		defer close(own.gone)
		_ = own.cmd.Wait() // how it ended is in its state
	}()
	client, err := protocol.NewClient(ours)
	if err != nil {
		_ = ours.Close() // it was of no use
		own.end(ctx)
		return nil, nil, err
	}
	// Only its answer shows that it can serve.
	if _, err := client.List(ctx); err != nil {
		_ = client.Close() // it was of no use
		own.end(ctx)
		text, _ := said.Take()
		if !errors.Is(err, ErrUnavailable) && ctx.Err() == nil {
			return nil, nil, err
		}
		if text = bytes.TrimSpace(text); len(text) == 0 {
			text = []byte("it said nothing; was that a launcher?")
		}
		if errors.Is(err, context.DeadlineExceeded) {
			text = append([]byte("it did not answer on descriptor 3 in time (the option --fd 3 of sandbox-runtime launcher): "), text...)
		}
		said := fmt.Errorf("launcher %q %w: %s: %s", strings.Join(command, " "), ErrUnavailable, own.cmd.ProcessState, text)
		return nil, nil, endedBy(ctx, said)
	}
	return client, own, nil
}

// leaveTime is how long a launcher may take to end after its connection has. It is longer than the launcher
// allows itself.
const leaveTime = 25 * time.Second

// wait returns when the launcher has ended, as it does when its connection ends, or
// when ctx is done. The launcher is killed if it stays for longer than leaveTime.
func (o *ownLauncher) wait(ctx context.Context) error {
	select {
	case <-o.gone:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(leaveTime):
		o.kill()
	}
	return nil
}

// end is wait, and kills the launcher when ctx is done.
func (o *ownLauncher) end(ctx context.Context) {
	if o.wait(ctx) != nil {
		o.kill()
	}
}

func (o *ownLauncher) kill() {
	o.cmd.Process.Kill() //nolint:errcheck // it has just ended
	<-o.gone
}
