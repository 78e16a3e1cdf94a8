package oci

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
)

// Start makes the command start.
func Start() *cli.Command {
	return &cli.Command{
		Name:      "start",
		Usage:     "execute the command of a created container",
		ArgsUsage: "<container-id>",
		Description: `Lets a container that "create" has set up execute its command, and returns at
once; with $NOTIFY_SOCKET when the command says that it is ready, or has ended.

    # ` + commandline.Program + ` start web-1`,
		Action: commandline.OnContainer(1, startContainer),
	}
}

func startContainer(_ context.Context, cmd *cli.Command, c *container.Container) error {
	// Of two that start it one would wait for an init that has long gone on.
	unlock, err := c.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	state, err := c.State()
	if err != nil {
		return err
	}
	switch state.Status {
	case container.Created:
	case container.Stopped:
		return errors.New("cannot start a container that has stopped")
	case container.Running:
		return errors.New("cannot start an already running container")
	default:
		return fmt.Errorf("cannot start a container in the %s state", state.Status)
	}
	notify := frontend.NewNotifyProxy(commandline.StateRoot(cmd), c.ID())
	if notify == nil {
		return c.Exec()
	}
	pidfd, err := c.PidFD()
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if err := notify.Listen(); err != nil {
		return err
	}
	if err := c.Exec(); err != nil {
		return err
	}
	unlock() // the container may take its time until it is ready
	return notify.Relay(pidfd, state.Pid)
}
