package oci

import (
	"context"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// Restore makes the command restore.
func Restore() *cli.Command {
	o := newCRIUOptions()
	return &cli.Command{
		Name:      "restore",
		Usage:     "let a container go on from a checkpoint",
		ArgsUsage: "<container-id>",
		Description: `Creates a container from the bundle and has criu(8), which must be on PATH, start
it with the processes that "checkpoint" has written to --image-path. Bundle and
root filesystem must be as they were then. Unless detached it waits as "run" does,
deletes the container and exits with its status.

    # ` + commandline.Program + ` restore --image-path /var/tmp/web --bundle /bundles/web --detach web

If criu fails, its restore.log in --work-path (default: --image-path) says why.`,
		Flags: slices.Concat(criuFlags(o), []cli.Flag{
			&cli.StringFlag{Name: "bundle", Aliases: []string{"b"}, Usage: "`DIR` of the bundle (default: the current directory)"},
			&cli.StringFlag{Name: "console-socket",
				Usage: "`PATH` of a unix socket that receives the master of the console's pseudoterminal"},
			&cli.StringFlag{Name: "pid-file", Usage: "`FILE` to write the process id to"},
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "leave the container running"},
			&cli.BoolFlag{Name: "no-subreaper", Usage: "do not reap orphaned processes of the container"},
			&cli.BoolFlag{Name: "no-pivot",
				Usage: "do not use pivot_root, for a rootfs on a ramdisk; weaker isolation"},
			&cli.StringFlag{Name: "lsm-profile", Destination: &o.LsmProfile, Usage: "`TYPE:NAME` of another AppArmor or SELinux profile"},
			&cli.StringFlag{Name: "lsm-mount-context", Destination: &o.LsmMountContext, Usage: "another SELinux `CONTEXT` of the mounts"},
		}),
		Action: commandline.WithArgs(1, 1, func(ctx context.Context, cmd *cli.Command) error {
			return restoreContainer(ctx, cmd, o)
		}),
	}
}

func restoreContainer(ctx context.Context, cmd *cli.Command, o *container.CRIUOptions) error {
	warnRootless(commandline.LogFrom(ctx))
	if err := checkCRIUFlags(cmd, o); err != nil {
		return err
	}
	// newProcess changes the working directory. So relative paths must be made absolute before.
	for _, path := range []*string{&o.ImagesDirectory, &o.WorkDirectory} {
		if err := makeAbsolute(path); err != nil {
			return err
		}
	}
	p, err := newProcess(ctx, cmd)
	if err != nil {
		return err
	}
	p.Restore = o
	p.Detach = cmd.Bool("detach")
	p.Reap = !cmd.Bool("no-subreaper")
	status, err := p.Run()
	if err != nil {
		return err
	}
	return commandline.ExitWith(status)
}
