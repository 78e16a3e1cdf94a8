package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// stageCaller has the test binary be a program that embeds sandboxes: it makes
// some by the launcher on a socket, starts a detached and an attached command in
// each, and waits for its commands' ends. callerSocket and callerNames tell it
// which.
const (
	stageCaller  = "caller"
	callerSocket = "SANDBOX_RUNTIME_INTEGRATION_SOCKET"
	callerNames  = "SANDBOX_RUNTIME_INTEGRATION_NAMES"
)

// callerMain prints the ids of the detached commands once all run, and what
// became of each attached one.
func callerMain() int {
	if err := call(context.Background(), os.Getenv(callerSocket), os.Getenv(callerNames)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func call(ctx context.Context, socket, names string) error {
	var all []string
	if err := json.Unmarshal([]byte(names), &all); err != nil {
		return err
	}
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: socket})
	if err != nil {
		return err
	}
	calls := make([]callerBox, len(all))
	errs := make([]error, len(all))
	var starting sync.WaitGroup
	for i, name := range all {
		starting.Go(func() { errs[i] = calls[i].start(ctx, m, name) })
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	ids := map[string]string{}
	for _, c := range calls {
		ids[c.box.ID()] = c.detached.ID()
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(ids); err != nil {
		return err
	}
	for _, c := range calls {
		result, err := c.attached.Wait()
		_, next := c.box.Exec(ctx, sandbox.Command{Args: []string{"true"}})
		if err := out.Encode([]string{string(result.Status), fmt.Sprint(err), fmt.Sprint(next)}); err != nil {
			return err
		}
	}
	return m.Close()
}

// A callerBox is a sandbox and its two commands.
type callerBox struct {
	box                *sandbox.Sandbox
	detached, attached *sandbox.Process
}

func (c *callerBox) start(ctx context.Context, m *sandbox.Manager, name string) (err error) {
	if c.box, err = m.Create(ctx, sandbox.Config{}, sandbox.Named(name)); err != nil {
		return err
	}
	if c.detached, err = c.box.Start(ctx, sandbox.Command{Args: []string{"sh", "-c", detachedScript(name)}, Detached: true}); err != nil {
		return err
	}
	read, write := io.Pipe()
	c.attached, err = c.box.Start(ctx, sandbox.Command{Args: []string{"sh", "-c", attachedScript}, Stdout: write})
	if err != nil {
		return err
	}
	_, err = io.ReadFull(read, make([]byte, len("ready\n")))
	return err
}
