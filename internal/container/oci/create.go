package oci

import (
	"context"
	"fmt"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// Create makes the command create.
func Create() *cli.Command {
	return &cli.Command{
		Name:      "create",
		Usage:     "create a container",
		ArgsUsage: "<container-id>",
		Description: `Sets up a container from a bundle: its namespaces, cgroups, mounts and hooks. "start"
then executes its command. A caller may add more before the start, for example a network.

    # ` + commandline.Program + ` spec --bundle web        a ` + frontend.ConfigName + ` to change
    # ` + commandline.Program + ` create --bundle web --pid-file web.pid web-1
    # ` + commandline.Program + ` start web-1

The id must be unique below --root. The command has the caller's stdin, stdout and
stderr. With "terminal": true in ` + frontend.ConfigName + ` it has a terminal instead, and
--console-socket receives the other end. The command's descriptors from 3 on are the
sockets of a service manager ($LISTEN_FDS), then the descriptors of --preserve-fds. If
$NOTIFY_SOCKET is set at create and at start, the command's READY=1 reaches this socket
(sd_notify(3)).`,
		Flags:  startFlags(),
		Action: commandline.WithArgs(1, 1, createContainer),
	}
}

func createContainer(ctx context.Context, cmd *cli.Command) error {
	p, err := newProcess(ctx, cmd)
	if err == nil {
		p.Hold, p.Detach = true, true
		_, err = p.Run()
	}
	if err != nil {
		return fmt.Errorf("%s create failed: %w", commandline.Program, err)
	}
	return nil
}

// startFlags are the flags that create and run share.
func startFlags() []cli.Flag {
	return slices.Concat([]cli.Flag{
		&cli.StringFlag{Name: "bundle", Aliases: []string{"b"}, Usage: "`DIR` of the bundle (default: the current directory)"},
		&cli.BoolFlag{Name: "no-pivot",
			Usage: "do not use pivot_root, for a rootfs on a ramdisk; weaker isolation"},
		&cli.BoolFlag{Name: "no-new-keyring",
			Usage: "do not create a new session keyring: the container has the caller's"},
	}, processFlags())
}

// processFlags are the flags of every command that starts a process.
func processFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "console-socket",
			Usage: "`PATH` of a unix socket that receives the master of the console's pseudoterminal"},
		&cli.StringFlag{Name: "pidfd-socket", Usage: "`PATH` of a unix socket that receives a pidfd of the process"},
		&cli.StringFlag{Name: "pid-file", Usage: "`FILE` to write the process id to"},
		&cli.IntFlag{Name: "preserve-fds", Usage: "pass `N` more file descriptors (stdio + $LISTEN_FDS + N in total)"},
	}
}

// newProcess creates the container that the flags and the argument describe. It returns the
// container's first process, which is not started yet.
func newProcess(ctx context.Context, cmd *cli.Command) (*frontend.Process, error) {
	id := cmd.Args().First()
	if id == "" {
		return nil, commandline.ErrEmptyID
	}
	// frontend.New changes the working directory. So the relative path of a pid file must be
	// made absolute before.
	processIO, err := readProcessIO(cmd)
	if err != nil {
		return nil, err
	}
	rootless, err := container.RootlessCgroups(cmd.String("rootless"), cmd.Bool("systemd-cgroup"))
	if err != nil {
		return nil, fmt.Errorf("option --rootless: %w", err)
	}
	return frontend.New(frontend.Config{
		Root: commandline.StateRoot(cmd), ID: id, Bundle: cmd.String("bundle"), Log: commandline.LogFrom(ctx), ProcessIO: processIO,
		Options: container.Options{
			SystemdCgroup:   cmd.Bool("systemd-cgroup"),
			NoPivot:         cmd.Bool("no-pivot"),
			NoNewKeyring:    cmd.Bool("no-new-keyring"),
			RootlessCgroups: rootless,
		},
	})
}

// readProcessIO returns the values of processFlags.
func readProcessIO(cmd *cli.Command) (frontend.ProcessIO, error) {
	o := frontend.ProcessIO{
		ConsoleSocket: cmd.String("console-socket"), PidfdSocket: cmd.String("pidfd-socket"),
		PidFile: cmd.String("pid-file"), PreserveFDs: cmd.Int("preserve-fds"),
	}
	return o, makeAbsolute(&o.PidFile)
}

// makeAbsolute makes a path absolute, except an empty one.
func makeAbsolute(path *string) (err error) {
	if *path != "" {
		*path, err = hostpaths.Absolute(*path)
	}
	return err
}
