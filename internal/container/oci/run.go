package oci

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
)

// Run makes the command run.
func Run() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "create and run a container",
		ArgsUsage: "<container-id>",
		Description: `Runs a container from a bundle, and unless detached waits for it, passes
signals on to it, deletes it and exits with its status, 128+n if signal n ended
it. The id must be unique below --root.

    # ` + commandline.Program + ` run --bundle web web-1
    # ` + commandline.Program + ` run --bundle web --detach --pid-file web.pid web-1

With --keep the stopped container stays for "state" and "delete", also if its start failed.`,
		Flags: append(startFlags(),
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "leave the container running"},
			&cli.BoolFlag{Name: "keep", Usage: "do not delete the container after it exits"},
			&cli.BoolFlag{Name: "no-subreaper", Usage: "do not reap orphaned processes of the container"},
		),
		Action: commandline.WithArgs(1, 1, runContainer),
	}
}

func runContainer(ctx context.Context, cmd *cli.Command) error {
	p, err := newProcess(ctx, cmd)
	if err != nil {
		return fmt.Errorf("%s run failed: %w", commandline.Program, err)
	}
	p.Detach = cmd.Bool("detach")
	p.Keep = cmd.Bool("keep")
	p.Reap = !cmd.Bool("no-subreaper")
	status, err := p.Run()
	if err != nil {
		return fmt.Errorf("%s run failed: %w", commandline.Program, err)
	}
	return commandline.ExitWith(status)
}
