package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// Kill makes the command kill.
func Kill() *cli.Command {
	return &cli.Command{
		Name:      "kill",
		Usage:     "send a signal (default: SIGTERM) to a container's init process",
		ArgsUsage: "<container-id> [signal]",
		Description: `The signal is a number or a name, with or without SIG, in any case; 0 asks whether
the process is there. SIGKILL ends all processes of the container, also those of
one without a pid namespace and of one that is paused.

    # ` + commandline.Program + ` kill web-1          SIGTERM
    # ` + commandline.Program + ` kill web-1 KILL
    # ` + commandline.Program + ` kill web-1 10       SIGUSR1`,
		Flags: []cli.Flag{
			// Daemons still pass it. One part of its old meaning is left: a stopped
			// container is no error.
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Hidden: true},
		},
		Action: commandline.OnContainer(2, killContainer),
	}
}

func killContainer(_ context.Context, cmd *cli.Command, c *container.Container) error {
	s, err := parseSignal(cmp.Or(cmd.Args().Get(1), "SIGTERM"))
	if err != nil {
		return err
	}
	err = c.Signal(s)
	if errors.Is(err, container.ErrNotRunning) && cmd.Bool("all") {
		return nil
	}
	return err
}

// lastSignal is SIGRTMAX (signal(7)).
const lastSignal = 64

// parseSignal takes a number, 0 included, or a name in any case.
func parseSignal(s string) (unix.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil && n >= 0 && n <= lastSignal {
		return unix.Signal(n), nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n != 0 {
		return n, nil
	}
	return 0, fmt.Errorf("unknown signal %q", s)
}
