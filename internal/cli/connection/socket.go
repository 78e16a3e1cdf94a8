package connection

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Socket decides which launcher a command uses. It returns the socket of a launcher that listens,
// or nothing for the launcher inside this process. Only root can make sandboxes in this process, so
// other users need a launcher that listens, unless they name directories of their own.
func Socket(cmd *cli.Command) (string, error) {
	root := cmd.Root()
	if cmd.IsSet("socket") {
		for _, flag := range []string{"root", "data", "network-range", "local"} {
			if root.IsSet(flag) || cmd.IsSet(flag) {
				return "", fmt.Errorf("--socket and --%s do not go together: the launcher of the socket has directories of its own", flag)
			}
		}
		if cmd.String("socket") == "" { // as of an unset variable of a script
			return "", errors.New("option --socket is empty; name the socket of a launcher, or leave it out")
		}
		return cmd.String("socket"), nil
	}
	if os.Geteuid() == 0 || root.IsSet("root") || root.IsSet("data") || root.IsSet("network-range") || cmd.Bool("local") {
		return "", nil
	}
	return sandbox.SharedSocket, nil
}

// WhyNoSocket is the reason why a command uses no launcher that listens; "" for the other commands.
func WhyNoSocket(command string) string {
	switch command {
	case "create", "start", "run", "spec", "features", "checkpoint", "restore", "events":
		return "it works on OCI containers, and a launcher has sandboxes"
	case "kill":
		return "it signals the first process of a container; end a sandbox with down, and a command with attach --kill"
	case "prune":
		return "it removes the remains of all users from the state root; run it as root"
	case "register":
		return "it changes configuration files of this host"
	}
	return ""
}

// RefuseSocket makes a command and its subcommands refuse --socket if the command uses no launcher that listens.
func RefuseSocket(c *cli.Command) {
	if reason := WhyNoSocket(c.Name); reason != "" {
		refuseSocket(c, fmt.Errorf("--socket is not for %s: %s", c.Name, reason))
	}
}

func refuseSocket(c *cli.Command, refusal error) {
	for _, sub := range c.Commands {
		refuseSocket(sub, refusal)
	}
	do := c.Action
	c.Action = func(ctx context.Context, cmd *cli.Command) error {
		if cmd.IsSet("socket") {
			return refusal
		}
		return do(ctx, cmd)
	}
}
