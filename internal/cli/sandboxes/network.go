package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/configflags"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Network makes the command network.
func Network() *cli.Command {
	flags := append([]cli.Flag{
		commandline.JSONFlag("print the present network, the change, each decision of --log or the rules of --suggest as JSON"),
		&cli.BoolFlag{Name: "log", Usage: "print the decisions of the network proxied, and go on with new ones"},
		&cli.BoolFlag{Name: "suggest", Usage: "print the --allow rules that the sandbox has needed so far, for --network proxied"},
	}, configflags.ForLibrary(configflags.OfNetwork())...)
	return &cli.Command{
		Name:      "network",
		Usage:     "show or change the network of a sandbox while it runs",
		ArgsUsage: "NAME [none|proxied|full]",
		Description: `A stricter network holds before the command returns, also for open connections.
Processes and files stay. --allow, --deny, --network-rules, --observe, --upstream-proxy and
--publish replace the earlier ones. With the name alone, the command prints the present
network, its rules and the level.

--sensitivity raises the level of the data inside: public, internal, confidential or
secret. Public and internal permit the network full, confidential permits proxied, and
secret permits none. The level never falls. It ends with "down".

    sandbox-runtime network box
    sandbox-runtime network box proxied --allow pypi.org --allow '*.pythonhosted.org'
    sandbox-runtime network box full --allow 10.0.0.0/8:5432
    sandbox-runtime network box none
    sandbox-runtime network --sensitivity secret box
    sandbox-runtime network --log box
    sandbox-runtime network --suggest box`,
		Flags:  flags,
		Action: commandline.WithHint(1, 2, "name one sandbox, and optionally its new network, as in: network box none", network),
	}
}

func network(ctx context.Context, cmd *cli.Command) error {
	var c spec.Config
	if err := configflags.Apply(cmd, configflags.OfNetwork(), &c); err != nil {
		return err
	}
	c.Network = spec.Network(cmd.Args().Get(1))
	isChange := !c.Grant().Equal(spec.NetworkGrant{})
	switch log, suggest := cmd.Bool("log"), cmd.Bool("suggest"); {
	case (log || suggest) && (isChange || c.Sensitivity != "" || log && suggest):
		return errors.New("--log and --suggest change nothing: use each of them alone, as in: network --log box")
	case log:
		return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error { return newNetworkLog(ctx, cmd, box, true).print() })
	case suggest:
		return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error { return newNetworkLog(ctx, cmd, box, false).suggest() })
	case c.Network == "" && isChange:
		return errors.New("rules and --publish need the network beside the name, as in: network box proxied --allow example.com")
	}
	if c.Network == "" && c.Sensitivity == "" {
		return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error { return showNetwork(ctx, cmd, box) })
	}
	return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		change, err := changeNetwork(ctx, box, c)
		if err != nil {
			return configflags.AsTyped(cmd, err)
		}
		return printNetwork(cmd, change, change.Message)
	})
}

// changeNetwork first raises the level, then changes the network, which the new level must permit.
// The result describes both steps.
func changeNetwork(ctx context.Context, box *sandbox.Sandbox, c spec.Config) (sandbox.NetworkChange, error) {
	raised, err := box.RaiseSensitivity(ctx, c.Sensitivity)
	if err != nil || c.Network == "" {
		return raised, err
	}
	change, err := box.SetNetwork(ctx, c.Grant())
	change.From, change.Raised = raised.From, raised.Raised
	change.ConnectionsCut += raised.ConnectionsCut
	if raised.Raised {
		change.Message = raised.Message + " " + change.Message
	}
	return change, err
}

// printNetwork prints a network or its change: a line for a person, or the value as JSON.
func printNetwork(cmd *cli.Command, value any, line string) error {
	if cmd.Bool("json") {
		return json.NewEncoder(cmd.Root().Writer).Encode(value)
	}
	_, err := fmt.Fprintln(cmd.Root().Writer, line)
	return err
}

// presentNetwork is the network of a sandbox in JSON. It also has the fields of a change, from the network to itself.
type presentNetwork struct {
	sandbox.NetworkGrant
	sandbox.NetworkChange
}

// showNetwork prints the present network. A change that was interrupted is finished before.
func showNetwork(ctx context.Context, cmd *cli.Command, box *sandbox.Sandbox) error {
	none, err := box.RaiseSensitivity(ctx, "")
	if err != nil {
		return err
	}
	info, err := box.Info(ctx)
	if err != nil {
		return err
	}
	n := presentNetwork{info.Config.Grant(), none}
	n.Network = n.Kind()
	return printNetwork(cmd, n, n.String())
}

// String is one line for a person.
func (n presentNetwork) String() string {
	parts := []string{fmt.Sprintf("network %s, sensitivity %s", n.Network, n.Sensitivity)}
	for _, list := range []struct {
		word  string
		items []string
	}{{"allow", n.Allow}, {"deny", n.Deny}, {"publish", n.Publish}} {
		if len(list.items) > 0 {
			parts = append(parts, list.word+" "+strings.Join(list.items, ", "))
		}
	}
	if n.UpstreamProxy != "" {
		parts = append(parts, "upstream proxy "+n.UpstreamProxy)
	}
	if n.Observe {
		parts = append(parts, "observe")
	}
	if n.Ask {
		parts = append(parts, "ask")
	}
	return strings.Join(parts, "; ")
}
