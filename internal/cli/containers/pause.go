package containers

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Pause makes the command pause.
func Pause() *cli.Command {
	return &cli.Command{
		Name:      "pause",
		Usage:     "suspend all processes of a container",
		ArgsUsage: "<container-id>",
		Description: `Freezes the container's cgroup: its processes keep their memory, files and
connections, and get no CPU time until "resume". Signals wait until then, except
SIGKILL. Works on a sandbox of "do" too; its --timeout goes on.

    # ` + commandline.Program + ` pause web
    # ` + commandline.Program + ` state web        says "status": "paused"
    # ` + commandline.Program + ` resume web`,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if namesSandbox(cmd) {
				return commandline.WithArgs(1, 1, pauseSandbox)(ctx, cmd)
			}
			return onCgroup((*container.Container).Pause)(ctx, cmd)
		},
	}
}

// pauseSandbox waits for a process that makes or changes the sandbox: a sandbox that is
// paused while it is made would never be complete.
func pauseSandbox(ctx context.Context, cmd *cli.Command) error {
	return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error { return box.Pause(ctx) })
}

// Resume makes the command resume.
func Resume() *cli.Command {
	return &cli.Command{
		Name:      "resume",
		Usage:     "let a paused container go on",
		ArgsUsage: "<container-id>",
		Description: `Lets a container of "pause" go on. It is an error if the container is not paused.

    # ` + commandline.Program + ` resume web`,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if namesListed(cmd) {
				return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error { return box.Resume(ctx) })
			}
			return onCgroup((*container.Container).Resume)(ctx, cmd)
		},
	}
}

// onCgroup is an action on the cgroup of the container that the one argument names.
func onCgroup(do func(*container.Container) error) cli.ActionFunc {
	return commandline.OnContainer(1, func(ctx context.Context, cmd *cli.Command, c *container.Container) error {
		err := do(c)
		hintAtCgroups(commandline.LogFrom(ctx), cmd.Name, err)
		return err
	})
}

// hintAtCgroups tells a user without privileges where a refusal comes from.
func hintAtCgroups(log *slog.Logger, command string, err error) {
	if errors.Is(err, fs.ErrPermission) {
		log.Warn(command + " failure might be caused by lack of full access to cgroups")
	}
}
